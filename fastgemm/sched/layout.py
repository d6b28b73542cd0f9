"""Where things lie in the flat vectors the jitted scheduler works on.

A *packed* DAG is one int32 vector: a header, then one row of `NODE` words per instruction (and a closing row), then edges,
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
H_DEEPEST = 15

# one instruction, static
NODE = 16
FLAVOR = 0
GROUP = 1  # hazard group
UNIT_CYCLES = 2
UOPS = 3
MATRIX = 4
WINDOW = 5
FLAGS = 6
DEPTH = 7
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
GROUPS = 15
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
) = range(GROUPS)

# one instruction, dynamic -----------------------------------------------------------------------------------------------
LIVE = 12
READY = 0
OPEN = 1  # unscheduled predecessors; -1 once scheduled
MARK = 2  # bit f: reaches unit f's target; bit 11: the deep matrix target
LOOK = 3  # bit i: reaches the i-th look-ahead node (two banks of 8)
RAW = 4  # visible-latency bound that is settled
RAW_OPEN = 5  # latest vector predecessor without a later matrix op, -1: none
RAW_SEEN = 6  # matrix ops issued when RAW_OPEN was taken
STAMP = 7
SOFT = 8  # unscheduled weak predecessors
WAR = 9  # 1: a load that defines a register (its readers matter)

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
C_UOPS = 1  # micro-ops issued in this cycle
C_AVAILABLE = 2  # lengths of the queues
C_PENDING = 3
C_CHECK = 4  # pending nodes may have become available
C_RESERVED = 5  # matrix unit busy until
C_SKIP = 6  # the next hazard step is skipped
C_WINDOW = 7  # running window, -1: none
C_STAGE = 8
C_TRANS = 9  # cycles until a TRANS may follow, a vector op, a scalar op
C_VECTOR = 10
C_SCALAR = 11
C_WAITS = 12  # some group waits
C_SGPR = 13
C_VGPR = 14
C_GATE = 15  # 0: no pressure rung, 1: vector, 2: scalar
C_STALE = 16  # the ready snapshot is older than the last commit
C_SORTED = 17  # units are sorted for this pick
C_MARKED = 18  # targets are marked for this pick
C_FIFO = 19  # wait of DS nodes and of fences in this pick
C_FENCE = 20
C_PICKS = 21
C_STAMP = 22
C_CLUSTER = 23
C_LOGGING = 24  # write queues and comparisons to the log (else only count its words)
C_NODES = 25
C_LOGGED = 26  # words of the log so far
C_PLACE = 27  # where the pick stands in its queue
C_FROM_PENDING = 28
C_SUPPLY_I = 29
C_SUPPLY_E = 30
C_TARGETED = 31  # the window ShadowMix aims at was chosen for this pick
C_DEMAND_E = 32
C_DEMAND_I = 33
C_DEMAND_T = 34
C_AIM = 35  # flavor of that window, -1: none populated
C_NEAR_VALU = 36  # is a needed node near the ready ones? -1: not asked yet in this pick
C_NEAR_DS = 37
C_REASON = 38
# positions of sections in the work vector
W_AVAILABLE = 40
W_PENDING = 41
W_MEMBERS = 42
W_ORDERED = 43
W_WMMA = 44
W_DS = 45
W_READERS = 46
W_CELLS = 47
W_SLICES = 48
W_REGISTERS = 49
W_SEARCH = 50
W_LOOK = 51
W_FLOW = 52
W_VALUES = 53  # position of the values in the packed DAG
W_SLICE_FLAGS = 54
W_SOFT = 55
# features of the champion and of the challenger
C_CHAMPION = 56
C_CHALLENGER = 64
F_BIAS = 0
F_EXCESS = 1
F_STALL = 2
F_MISSED = 3
F_PIPE = 4
F_SLOT = 5
FEATURES = 6
# the two windows
C_CURRENT = 72
C_NEXT = 80
WIN_FLAVOR = 0
WIN_E = 1
WIN_I = 2
WIN_T = 3
WIN_POPULATED = 4
WIN_ACTIVE = 5
WIN_END = 6
C_WAIT = 88  # per hazard group
C_FILL = 104  # per flavor
C_ORDER = 116  # units in sorted order
SCALARS = 128

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
M_FEATURES = 18
M_RUNGS = 19
M_LADDER = 20
M_CLASS = 44  # per hazard group
M_FLAVOR_CLASS = 60  # per flavor
M_KINDS = 72  # slot kinds of the roofline
M_KIND_ADMITS = 73
M_WINDOWS = 96
# one window: length, E and I stages, then per stage a record of STAGE words
WINDOW_WORDS = 4 + 32 * 14
STAGE = 14  # words of one stage
S_ADMITS = 0
S_COUNTS = 1
S_PREFER = 2
S_AVOID = 3
S_KIND = 4
S_WAIT = 5  # per class
CLASSES = 8

# one pick as it is written out ------------------------------------------------------------------------------------------
OUT = 10
(O_NODE, O_CYCLE, O_READY, O_REASON, O_AVAILABLE, O_PENDING, O_STALL, O_WAIT, O_VGPR, O_SGPR) = range(OUT)
# kinds of stall
(K_NONE, K_READY, K_MATRIX, K_WINDOW, K_FIFO, K_FENCE, K_RAW, K_WAR, K_CARRIED) = range(9)
