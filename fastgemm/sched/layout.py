"""Where things lie in the flat vectors the jitted scheduler works on.

A *packed* DAG is one int64 vector: a header, then one row of `NODE` words per instruction (and a closing row), then edges,
predecessors, values and the lists of values each instruction reads and defines.  Positions stored in rows count from the
first row.  The scheduler's own state is a row of `LIVE` words per instruction plus the sections of `work_layout`, the scalars
of `Clock` and one row of `UNIT` words per hardware unit.
"""

# header of a packed DAG -------------------------------------------------------------------------------------------------
HEADER = 32
H_NODES = 0
H_EDGES = 1
H_VALUES = 2
H_LIVE_IN = 3  # values 0 .. H_LIVE_IN - 1 are live at the start
H_CELLS = 4
H_SLICES = 5
H_REGISTERS = 6
H_VGPR_LIMIT = 7
H_SGPR_LIMIT = 8
H_LOOP = 9
H_VALUE_AT = 10
H_SLICE_AT = 11
H_SOFT_AT = 12  # CSR starts of weak and cluster edges, 0: there are none
H_WMMA = 13
H_DS = 14
H_BIASED = 15  # some node has a physical-register bias

# one instruction, static
NODE = 16
FLAVOR = 0
GROUP = 1  # hazard group
DEPTH = 2
FLAGS = 3
MATRIX = 4
UNIT_CYCLES = 5
UOPS = 6
WINDOW = 7
HEIGHT = 8
BIAS = 9
REPEAT = 10  # blocking cycles; for a COPY its width in registers
CARRIED = 11
SUCC = 12  # first of its (target, latency) pairs; the next row's is the end
PRED = 13  # first of its predecessors, each 2 * source + (data edge)
READ = 14  # first of the values it reads
DEFINE = 15  # first of the values it defines

# one value: a lane slice of a register between a definition (or the region's start) and the next
VALUE = 8
V_WEIGHT = 0  # 32-bit registers; 0 where a cell counts it
V_CELL = 1  # 32-bit register shared by half slices, -1: none
V_READERS = 2  # instructions that read it
V_STAYS = 3  # live out, or never killed
V_DEAD = 4  # a dead definition
V_VECTOR = 5
V_SLICE = 6
V_REGISTER = 7

# hazard groups ----------------------------------------------------------------------------------------------------------
GROUPS = 16
(
    G_WMMA,
    G_TRANS,
    G_VALU1,
    G_VECTOR_COPY,
    G_VALUN,
    G_DMA,
    G_DS,
    G_VMEM,
    G_SMEM,
    G_SALU,
    G_SALU_FREE,
    G_FENCE,
    G_FENCE_FREE,
    G_OTHER,
    G_OTHER_FREE,
    G_WMMA_FREE,  # a matrix op that does not use the matrix unit
) = range(GROUPS)

# one instruction, dynamic -----------------------------------------------------------------------------------------------
LIVE = 9
READY = 0
OPEN = 1  # unscheduled predecessors; -1 once scheduled
MARK = 2  # bit f: reaches unit f's target; bit 11: the deep matrix target
LOOK = 3  # bit i: reaches the i-th look-ahead node (two banks of 8)
RAW = 4  # visible-latency bound that is settled
RAW_OPEN = 5  # latest vector predecessor without a later matrix op, -1: none
RAW_SEEN = 6  # matrix ops issued when RAW_OPEN was taken
STAMP = 7
SOFT = 8  # unscheduled weak predecessors

# one queue entry: what a pick asks of every candidate, in one word; a ready cycle is final once the node is queued
NODE_MASK = (1 << 24) - 1
FLAVOR_SHIFT = 24  # 4 bits
GROUP_SHIFT = 28  # 4 bits
READY_SHIFT = 32

# one hardware unit ------------------------------------------------------------------------------------------------------
FLAVORS = 11
UNIT = 24
U_LEFT = 0  # members left
U_TOTAL = 1
U_REMAINING = 2
U_EXPOSED = 3
U_BUFFER = 4  # buffer cycles (DS)
U_FIRST = 5  # its members, sorted by depth, in the work vector
U_END = 6
U_OPEN = 7  # first member that is not ready
U_GROUP = 8  # first member left
U_DEPTH = 9  # depth of the priority list
U_GROUP_LEFT = 10  # members of the priority list left
U_READY = 11  # ready nodes and their unit cycles now
U_READY_CYCLES = 12
U_SEEN = 13  # the same in the snapshot
U_SEEN_CYCLES = 14
U_ISSUED = 15
U_LAST_READY = 16  # ready cycle of the last issued
U_LAST_CYCLES = 17
U_SHALLOW = 18  # targets whose ancestors are marked
U_DEEP = 19
U_ORDERED = 20  # members in node order, in the work vector
U_RANK = 21

# scalars of one run -----------------------------------------------------------------------------------------------------
C_CYCLE = 0
C_AVAILABLE = 1  # lengths of the queues
C_PENDING = 2
C_CHECK = 3  # pending nodes may have become available
C_RESERVED = 4  # matrix unit busy until
C_SKIP = 5  # the next hazard step is skipped
C_WINDOW = 6  # running window, -1: none
C_STAGE = 7
C_TRANS = 8  # cycles until a TRANS may follow, a vector op, a scalar op
C_VECTOR = 9
C_SCALAR = 10
C_BLOCKED = 11  # hazard groups that may not issue now, as a mask
C_SGPR = 12
C_VGPR = 13
C_GATE = 14  # 0: no pressure rung, 1: vector, 2: scalar
C_STALE = 15  # the ready snapshot is older than the last commit
C_SORTED = 16  # units are sorted for this pick
C_MARKED = 17  # targets are marked for this pick
C_FIFO = 18  # wait of DS nodes and of fences in this pick
C_FENCE = 19
C_PICKS = 20
C_STAMP = 21
C_CLUSTER = 22
C_LOGGING = 23  # write queues and comparisons to the log (else only count its words)
C_LOGGED = 24  # words of the log so far
C_NODES = 25
C_COMPARED = 26  # comparisons so far (counted with the log only)
C_REASON = 27
C_SUPPLY_I = 28
C_SUPPLY_E = 29
C_MIX = 30  # ShadowMix in this pick: -1 not asked yet, 0 no demand, 1 satisfied, 2 not satisfied, 3 depends on the pair
C_MIX_NOW = 31  # the same for the comparison at hand, never 3
C_DEMAND_E = 32
C_DEMAND_I = 33
C_DEMAND_T = 34
C_AIM = 35  # flavor of the window aimed at, -1: none populated
C_NEEDED = 36  # flavor an unsatisfied demand asks for
C_NEAR_VALU = 37  # is a needed node near the ready ones? -1: not asked yet in this pick
C_NEAR_DS = 38
C_DEEP = 39  # the deep matrix target counts in this comparison
C_CLASS = 40  # candidates that survive the steps whose reason belongs to the candidate
C_CANDIDATES = 41
C_UNITS = 42  # units with members
C_BIASED = 43  # ready nodes with a physical-register bias
# positions of sections in the work vector
W_AVAILABLE = 44
W_PENDING = 45
W_MEMBERS = 46
W_ORDERED = 47
W_WMMA = 48
W_DS = 49
W_READERS = 50
W_CELLS = 51
W_SLICES = 52
W_REGISTERS = 53
W_SEARCH = 54
W_LOOK = 55
W_FLOW = 56
W_CLASS = 57
W_ALIVE = 58
W_VALUES = 59  # position of the values in the packed DAG
W_SLICE_FLAGS = 60
W_SOFT = 61
W_CANDIDATES = 62
W_STALLS = 63
W_COSTS = 198
# the two windows
C_CURRENT = 64
C_NEXT = 72
WIN_FLAVOR = 0
WIN_E = 1
WIN_I = 2
WIN_T = 3
WIN_POPULATED = 4
WIN_ACTIVE = 5
WIN_END = 6
C_WAIT = 80  # per hazard group: cycles until it may issue
C_STALL = 96  # per hazard group: what a pick counts, the waits of DS and fences included
C_IN_AVAILABLE = 112  # per hazard group: nodes in each queue
C_IN_PENDING = 128
C_FILL = 144  # per flavor
C_ORDER = 156  # units in sorted order
C_KEYS = 168  # two sort keys per unit
C_VGPR_LIMIT = 190
C_SGPR_LIMIT = 191
C_LIMIT = 192  # of the registers the gate looks at
C_WHOLE = 193  # all candidates looked at are in the class, which is not listed
C_DECIDED = 194  # the last step that removed candidates, -1: none or a duel
C_IDLE = 195  # steps that can tell no candidates apart in this pick, as a mask
C_TIED = 196  # candidates only the node order told apart, and where they lie
C_TIED_AT = 197
C_DIRTY = 200  # units whose sort keys changed, as a mask
C_LEAST = 201  # smallest wait of all candidates
C_TOUCHED = 202  # cells were counted
C_LIVE_IN = 203  # values live at the start of the region
SCALARS = 208

# the model: switches of a profile, numbers of a machine, tables ---------------------------------------------------------
M_HAZARDS = 0
M_STALLS = 1  # mask over the stall kinds that count
M_EXPOSURE = 2  # late units: remaining, exposed, roofline, windows
M_DS_BUFFER = 3  # entries; 0: DS totals are not divided
M_AVAILABLE_LIMIT = 4
M_TRANS_SHADOW = 5
M_AFTER_READ = 6  # scalar wait; 0: none
M_AFTER_WRITE = 7
M_VISIBLE = 8
M_VISIBLE_WMMA = 9
M_TRANS_GROUPS = 10  # masks over hazard groups
M_VECTOR_GROUPS = 11
M_SCALAR_GROUPS = 12
M_SHADOW_GROUPS = 13
M_SKIP_STEP = 14
M_GATE = 15  # registers before the limit at which the pressure rung wakes up
M_LARGE = 16  # nodes beyond which the look-ahead search is cut
M_BUDGET = 17
M_STEPS = 18  # steps of the ladder: (key, reason) pairs
M_OWN_STEPS = 19  # leading steps whose reason belongs to the candidate
M_LADDER = 20
M_CLASS = 76  # per hazard group
M_FLAVOR_CLASS = 92  # per flavor
M_KINDS = 104  # slot kinds of the roofline
M_KIND_ADMITS = 105
M_WINDOWS = 128
# one window: length, E and I stages, then per stage a record of STAGE words
WINDOW_WORDS = 4 + 32 * 14
STAGE = 14  # words of one stage
T_ADMITS = 0
T_COUNTS = 1
T_PREFER = 2
T_AVOID = 3
T_KIND = 4
T_WAIT = 5  # per class
CLASSES = 8

# one pick as it is written out ------------------------------------------------------------------------------------------
OUT = 10
(O_NODE, O_CYCLE, O_READY, O_REASON, O_AVAILABLE, O_PENDING, O_STALL, O_WAIT, O_VGPR, O_SGPR) = range(OUT)
# kinds of stall
(K_NONE, K_READY, K_MATRIX, K_WINDOW, K_FIFO, K_FENCE, K_RAW, K_WAR, K_CARRIED) = range(9)

# steps of a ladder: each is a key per candidate, the smaller one wins -----------------------------------------------------
(
    S_BIAS,
    S_EXCESS,
    S_STALL,
    S_COST,
    S_MISSED,
    S_PIPELINE,
    S_PIPELINE_ANY,
    S_SLOT,
    S_KILLS,
    S_MIX_SCORE,
    S_MIX_LOOK,
    S_MIX_MATCH,
    S_RANK,
    S_ENABLES_DS,
    S_LISTED,
    S_LISTED_WMMA,
    S_ENABLES,
    S_ENABLES_ALL,
    S_LOOP,
    S_CLUSTER,
    S_WEAK,
    S_ORDER,
) = range(22)
