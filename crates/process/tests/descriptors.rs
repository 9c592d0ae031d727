//! Alone in its process, since the limit is the process's.

use leadsman_process::descriptors::raise_descriptor_limit;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

#[test]
fn the_soft_limit_of_descriptors_is_raised_to_the_hard_one_within_reason() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
    let raised = raise_descriptor_limit().unwrap();
    assert_eq!(raised, hard.min(65_536));
    let limits = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert_eq!(limits, (raised, hard));
    assert_eq!(raise_descriptor_limit().unwrap(), raised);
}
