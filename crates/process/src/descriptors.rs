//! The limit of open file descriptors.
//!
//! A container runtime often starts a process with a soft limit of 1,024, which is there for programs that call select(2),
//! and a hard limit that is far above. Go's runtime raises the one to the other at its start (`os/rlimit.go`); so do we.

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// Far more than the bounded connections of any process of ours. Where the hard limit is a thousand million, a limit of its
/// own ends a leak before the node is out of memory.
const MOST: rlim_t = 65_536;

/// Raises the soft limit to the hard one, or to 65,536, and returns it. A limit that is above stays as it is.
pub fn raise_descriptor_limit() -> std::io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = hard.min(MOST).max(soft);
    if wanted != soft {
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?;
    }
    Ok(wanted)
}
