//! Every figure: what it is called, its unit, what is to be reached, and how it was obtained where the bench's page does not
//! say it. A figure's name is what it is of and what is here, `one stale pod: leads after the start`; by it runs are compared.

use crate::report::Target::{AtMost, Exactly, TimesFloor};
use crate::report::{Kind, Unit};

const S: Unit = Unit("s", 1.0);
const MS: Unit = Unit("ms", 1e3);
const US: Unit = Unit("µs", 1e6);
const B: Unit = Unit("B", 1.0);
pub(crate) const MIB: Unit = Unit("MiB", 1.0 / (1024.0 * 1024.0));
const TIMES: Unit = Unit("×", 1.0);
const A_SECOND: Unit = Unit("a second", 1.0);
const REQUESTS: Unit = Unit("requests", 1.0);
const WRITES: Unit = Unit("writes", 1.0);
const CALLS: Unit = Unit("calls", 1.0);
const THREADS: Unit = Unit("threads", 1.0);
const DESCRIPTORS: Unit = Unit("descriptors", 1.0);
const SOCKETS: Unit = Unit("sockets", 1.0);

macro_rules! figures {
    ($($name:ident = $what:literal, $unit:ident $(, $target:expr)* $(=> $how:literal)?;)*) => {$(
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
    SPEC_WRITES = "spec writes", REQUESTS;
    MARKER_STATUS_WRITES = "marker status writes", REQUESTS;
    FLIPPED_POD_WRITES = "pod writes", REQUESTS;
    OTHER_WRITES = "other writes", REQUESTS, Exactly(0.0);
    FAILED = "failed", REQUESTS, Exactly(0.0);
    LEASE_REQUESTS = "Lease requests", REQUESTS;
    WALL = "wall", S, TimesFloor(1.5);
    LAST_SPEC = "last spec", S;
    CPU = "CPU", S, AtMost(1.5);
    RSS_AFTER = "RSS after it", MIB, AtMost(35.0);
    RSS_PEAK = "RSS at its peak", MIB;
    BYTES = "bytes", MIB;
    IDLE_MANAGER_RSS = "manager RSS, idle on an empty cluster", MIB, AtMost(15.0);
    HALF_OF_PODS = "half of the pods", S;
    MOST_PODS = "99 % of the pods", S;
    LAST_POD = "last pod", S, TimesFloor(1.5);
    CPU_A_POD = "manager CPU a pod", MS, AtMost(0.4);
    WRITES_AFTER_FLOOR = "writes of a manager started after the floor", REQUESTS, Exactly(0.0);
}

// The manager's half of `restart`.
figures! {
    NO_WRITES = "writes but the Lease's", REQUESTS, Exactly(0.0);
    ONE_WRITE = "writes but the Lease's", REQUESTS, Exactly(1.0);
    LISTS_OF_PODS = "lists of pods", REQUESTS;
    READY = "ready", S, AtMost(3.0);
    CPU_UNTIL_READY = "CPU until ready", S;
    LEADS = "leads after the start", S => "the Lease was given back by a clean end: it is taken at once";
    LEADS_AFTER_KILL = "leads after the start", S => "the Lease of the killed one has to run out first";
    REPAIRED_ONCE_LEADING = "repaired after it leads and is ready", S, AtMost(1.0);
    REPAIRED_AFTER_START = "repaired after the start", S;
    REPAIRED_AFTER_KILL = "repaired after the kill", S;
}

// The agent's half of it.
figures! {
    AGENT_WRITES = "writes", WRITES, Exactly(0.0);
    STATUS_RIGHT = "status right after", S, AtMost(1.0);
    POD_RIGHT = "pod right after", S;
    STATUS_WRITES = "status writes", WRITES, Exactly(1.0);
    POD_WRITES = "pod writes", WRITES, Exactly(1.0);
    EVENTS = "events", WRITES, Exactly(1.0);
    UNTIL_MARK = "until the mark", S;
}

// One agent on a real node: `agent`.
figures! {
    CPU_A_MINUTE = "CPU a minute", MS;
    CPU_A_PROBE = "CPU a probe", US;
    CPU_A_SECOND = "CPU a second", MS;
    PROBES = "probes", A_SECOND;
    RSS = "RSS", MIB;
    IDLE_RSS = "RSS", MIB, AtMost(12.0);
    BUSY_RSS = "RSS", MIB, AtMost(14.0);
    LARGEST_RSS = "largest RSS", MIB => "VmHWM of the one agent of all windows but those of the proxy";
    THREADS_HELD = "threads", THREADS;
    DESCRIPTORS_HELD = "descriptors", DESCRIPTORS;
    API_REQUESTS = "API requests", REQUESTS, Exactly(0.0);
    IDLE_CRI_CALLS = "CRI calls", CALLS, Exactly(0.0);
    CRI_CALLS_A_PROBE = "CRI calls a probe", CALLS;
    CONTAINER_LISTS = "ListContainers", A_SECOND;
}

// Schedule and executors alone: `engine`.
figures! {
    SUSTAINED = "sustained", A_SECOND;
    LAG_MEDIAN = "lag, median", MS;
    LAG_OF_MOST = "lag, 99 in 100", MS;
    LAG_LARGEST = "lag, largest", MS;
    MEMORY_A_PROBE = "memory a scheduled probe", B
        => "resident set before and after the plan was taken in and all were scheduled";
    RSS_IN_ALL = "RSS in all", MIB;
    TIME_WAITS = "sockets in TIME_WAIT at the end", SOCKETS;
}

// The rules of the manager alone, after the name of an event: `index`.
figures! {
    GROWTH = ": 100,000 pods against 1,000", TIMES, AtMost(1.5);
    COLD_GROWTH = ": the same with cold caches", TIMES => "floor: one value of a bare map of as many";
    AMONG_ALL = " at 100,000 pods, 100 markers", US;
    COLD_AMONG_ALL = " there, with cold caches", US;
    BYTES_MATCHED = "bytes a pod of 100,000, of which every one matches", B;
    BYTES_UNMATCHED = "bytes a pod of 100,000, of which few match", B;
}
