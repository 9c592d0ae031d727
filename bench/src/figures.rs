//! Every figure: what it is called, its unit, what is to be reached, and how it was obtained where the bench's page does not
//! say it. A figure's name is what it is of and what is here, `one stale pod: leads after the start`; by it runs are compared.

use crate::report::Kind;
use crate::report::Target::{AtMost, Exactly, TimesFloor};

macro_rules! figures {
    ($($name:ident = $what:literal, $unit:literal $(, $target:expr)* $(=> $how:literal)?;)*) => {$(
        pub(crate) const $name: Kind = Kind {
            what: $what,
            unit: $unit,
            targets: &[$($target),*],
            how: concat!($($how)?),
        };
    )*};
}

// A manager beside a whole cluster of objects: `cold-start` and `flips`.
figures! {
    SPEC_WRITES = "spec writes", "requests";
    MARKER_STATUS_WRITES = "marker status writes", "requests";
    FLIPPED_POD_WRITES = "pod writes", "requests";
    OTHER_WRITES = "other writes", "requests", Exactly(0.0);
    FAILED = "failed", "requests", Exactly(0.0);
    LEASE_REQUESTS = "Lease requests", "requests";
    WALL = "wall", "s", TimesFloor(1.5);
    LAST_SPEC = "last spec", "s";
    CPU = "CPU", "s", AtMost(1.5);
    RSS_AFTER = "RSS after it", "MiB", AtMost(35.0);
    RSS_PEAK = "RSS at its peak", "MiB";
    BYTES = "bytes", "MiB";
    IDLE_MANAGER_RSS = "manager RSS, idle on an empty cluster", "MiB", AtMost(15.0);
    HALF_OF_PODS = "half of the pods", "s";
    MOST_PODS = "99 % of the pods", "s";
    LAST_POD = "last pod", "s", TimesFloor(1.5);
    CPU_A_POD = "manager CPU a pod", "ms", AtMost(0.4);
    WRITES_AFTER_FLOOR = "writes of a manager started after the floor", "requests", Exactly(0.0);
}

// A `SidecarSet` on such a cluster: `roll-out`.
figures! {
    UPGRADE_WRITES = "pod writes", "requests";
    SET_WRITES = "writes of the set", "requests";
    SET_STATUS_WRITES = "status writes of the set", "requests";
    REVISION_WRITES = "revision writes", "requests";
    CONFIGURATION_WRITES = "writes of the webhook configuration", "requests", AtMost(1.0);
    ROLLED_OUT = "every pod runs the new image", "s", TimesFloor(1.3);
    CPU_AN_UPGRADED_POD = "manager CPU an upgraded pod", "ms", AtMost(0.5);
    BYTES_SENT_A_POD = "bytes sent a pod", "B";
    UPGRADE_CPU_GROWTH = "manager CPU an upgraded pod", "×";
    RSS_AT_REST = "RSS before the first roll-out", "MiB";
    RSS_AFTER_ROLL_OUTS = "RSS after two", "MiB";
    RSS_AFTER_RESTART = "RSS after a restart", "MiB";
    POD_WRITES_AFTER_FLOOR = "pod writes of a manager started after the floor", "requests", Exactly(0.0);
}

// `AdvancedCronJob` and `BroadcastJob`: `schedules` and `broadcast`.
figures! {
    CHILDREN = "Jobs", "requests";
    SCHEDULE_STATUSES = "writes of schedules", "requests";
    CHILD_EVENTS = "events", "requests";
    CHILDREN_TOOK = "from the first Job to the last", "s", TimesFloor(1.3);
    CPU_A_CHILD = "manager CPU a Job", "ms";
    NEXT_RUN = "computing the next run", "µs", AtMost(2.0);
    IDLE_CPU = "CPU an hour", "s", AtMost(0.1);
    BROADCAST_PODS = "pod writes", "requests";
    BROADCAST_STATUSES = "writes of the job: statuses, records of successes", "requests";
    MOST_STATUSES = "status writes at one each two seconds", "requests";
    BROADCAST_TOOK = "every node has its pod", "s", TimesFloor(1.3);
    CPU_A_NODE = "manager CPU a node", "ms", AtMost(1.0);
}

// `CloneSet`: `clonesets`.
figures! {
    WRITES_A_POD = "writes a pod", "requests";
    CPU_A_CLONE = "manager CPU a pod", "ms";
    CLONES_CREATED = "the last pod is created", "s", TimesFloor(1.3);
    CLONES_OPEN = "the last pod is created and its gates are open", "s", TimesFloor(1.3);
    CLONES_REPLACED = "every pod is of the new template and ready", "s";
    CPU_A_POD_EVENT = "manager CPU an event of a pod", "ms", AtMost(0.1);
    POD_EVENT_GROWTH = "manager CPU an event of a pod", "×", AtMost(1.5);
    ACTED_ONCE_LEADING = "an edit is acted on after it leads and is ready", "s", AtMost(1.0);
    CLONES_RSS = "RSS", "MiB", AtMost(90.0);
    TENTH_POD = "from its creation to its tenth pod", "s", AtMost(1.0);
}

// The largest cluster: `record`.
figures! {
    RECORD_READY = "ready", "s", AtMost(60.0);
    RECORD_RSS = "RSS after it", "MiB", AtMost(450.0);
    RECORD_SPECS = "spec writes", "requests";
    CERTIFICATE_WRITES = "writes of the webhook's certificate", "requests", AtMost(1.0);
    VALIDATION_WRITES = "writes of the validating configuration", "requests", AtMost(1.0);
    PLANNED = "every node has its entries and every marker its status", "s";
    MARKED_PODS = "pod writes", "requests";
    ALL_MARKED = "every pod has its marks", "s";
    MARKS = "marks", "a second";
    CPU_OF_START = "CPU until all is planned", "s";
    CPU_A_MARK = "manager CPU a pod", "ms", AtMost(0.4);
    RECORD_ROLLED_OUT = "every pod runs the new image", "s";
    API_SERVER_RSS = "the API server's RSS", "MiB";
    TAKEN_OVER = "the standby leads after the kill", "s";
    MENDED = "a label that was taken off is back after the kill", "s";
    BARE_MARKS = "marks of a bare sender", "a second";
}

// Many `SidecarSet`s: `sets`.
figures! {
    SETS_READY = "ready", "s", AtMost(10.0);
    STATUSES_TOOK = "every set has its status", "s";
    CPU_OF_STATUSES = "manager CPU until then", "s";
}

// What the webhook adds to the creation of a pod: `injection`.
figures! {
    ADDED_MEDIAN = "added to a creation above an echo webhook, p50", "ms", AtMost(1.0);
    ADDED_MOST = "added to a creation above an echo webhook, p99", "ms", AtMost(5.0);
    CREATION_MEDIAN = "a creation, p50", "ms";
    CREATION_MOST = "a creation, p99", "ms";
    ADDED_TO_PATCH_MEDIAN = "added to a creation above an echo with the same patch, p50", "ms";
    ADDED_TO_PATCH_MOST = "added to a creation above an echo with the same patch, p99", "ms";
    PATCHED_MEDIAN = "a creation with the same patch from an echo, p50", "ms";
    PATCHED_MOST = "a creation with the same patch from an echo, p99", "ms";
    WITHOUT_MEDIAN = "a creation that no webhook is called for, p50", "ms";
    WITHOUT_MOST = "a creation that no webhook is called for, p99", "ms";
    NOT_INJECTED = "pods without their sidecar", "pods", Exactly(0.0);
    UNWANTED_CALLS = "calls for pods of no set", "calls", Exactly(0.0);
    CPU_A_CALL = "manager CPU a call", "ms";
}

// The manager's half of `restart`.
figures! {
    NO_WRITES = "writes but the Lease's", "requests", Exactly(0.0);
    ONE_WRITE = "writes but the Lease's", "requests", Exactly(1.0);
    LISTS_OF_PODS = "lists of pods", "requests";
    READY = "ready", "s", AtMost(3.0);
    CPU_UNTIL_READY = "CPU until ready", "s";
    LEADS = "leads after the start", "s" => "the Lease was given back by a clean end: it is taken at once";
    LEADS_AFTER_KILL = "leads after the start", "s" => "the Lease of the killed one has to run out first";
    REPAIRED_ONCE_LEADING = "repaired after it leads and is ready", "s", AtMost(1.0);
    REPAIRED_AFTER_START = "repaired after the start", "s";
    REPAIRED_AFTER_KILL = "repaired after the kill", "s";
}

// The agent's half of it.
figures! {
    AGENT_WRITES = "writes", "writes", Exactly(0.0);
    STATUS_RIGHT = "status right after", "s", AtMost(1.0);
    POD_RIGHT = "pod right after", "s";
    STATUS_WRITES = "status writes", "writes", Exactly(1.0);
    POD_WRITES = "pod writes", "writes", Exactly(1.0);
    EVENTS = "events", "writes", Exactly(1.0);
    UNTIL_MARK = "until the mark", "s";
}

// One hostile namespace beside an ordinary one: `tenants`. The floor is the ordinary one alone.
figures! {
    FLIP_MEDIAN = "the neighbour's flips, p50", "s", TimesFloor(1.5);
    FLIP_LARGEST = "the neighbour's flips, max", "s";
    FLIP_FROM_REPORT = "from the agent's report on, p50", "ms";
    LOST_FLIPS = "flips that were lost", "flips", Exactly(0.0);
    WRONG_VERDICTS = "wrong marks of the neighbour", "marks", Exactly(0.0);
    CREATED_MEDIAN = "a creation of the neighbour's, p50", "ms";
    CREATED_LARGEST = "a creation of the neighbour's, max", "ms";
    NOT_CREATED = "creations refused or without their sidecar", "pods", Exactly(0.0);
    MANAGER_PEAK = "manager RSS at its peak", "MiB", AtMost(512.0);
    AGENT_PEAK = "agent RSS at its peak", "MiB", AtMost(128.0);
    RESTARTS = "restarts", "restarts", Exactly(0.0);
    MANAGER_START = "a manager's start, until ready", "s";
    MANAGER_START_PEAK = "its RSS at its peak", "MiB", AtMost(512.0);
    BROKE_OFF = "broke off", "times", Exactly(0.0);
}

// One agent on a real node: `agent`.
figures! {
    CPU_A_MINUTE = "CPU a minute", "ms";
    CPU_A_PROBE = "CPU a probe", "µs";
    CPU_A_SECOND = "CPU a second", "ms";
    PROBES = "probes", "a second";
    RSS = "RSS", "MiB";
    IDLE_RSS = "RSS", "MiB", AtMost(12.0);
    BUSY_RSS = "RSS", "MiB", AtMost(14.0);
    LARGEST_RSS = "largest RSS", "MiB" => "VmHWM of the one agent of all windows but those of the proxy";
    THREADS_HELD = "threads", "threads";
    DESCRIPTORS_HELD = "descriptors", "descriptors";
    API_REQUESTS = "API requests", "requests", Exactly(0.0);
    IDLE_CRI_CALLS = "CRI calls", "calls", Exactly(0.0);
    CRI_CALLS_A_PROBE = "CRI calls a probe", "calls";
    CONTAINER_LISTS = "ListContainers", "a second";
}

// Schedule and executors alone: `engine`.
figures! {
    SUSTAINED = "sustained", "a second";
    LAG_MEDIAN = "lag, median", "ms";
    LAG_OF_MOST = "lag, 99 in 100", "ms";
    LAG_LARGEST = "lag, largest", "ms";
    MEMORY_A_PROBE = "memory a scheduled probe", "B"
        => "resident set before and after the plan was taken in and all were scheduled";
    RSS_IN_ALL = "RSS in all", "MiB";
    TIME_WAITS = "sockets in TIME_WAIT at the end", "sockets";
}

// The rules of the manager alone, after the name of an event: `index`.
figures! {
    GROWTH = ": 100,000 pods against 1,000", "×", AtMost(1.5);
    COLD_GROWTH = ": the same with cold caches", "×" => "floor: one value of a bare map of as many";
    AMONG_ALL = " at 100,000 pods, 100 markers", "µs";
    COLD_AMONG_ALL = " there, with cold caches", "µs";
    BYTES_MATCHED = "bytes a pod of 100,000, of which every one matches", "B";
    BYTES_UNMATCHED = "bytes a pod of 100,000, of which few match", "B";
}
