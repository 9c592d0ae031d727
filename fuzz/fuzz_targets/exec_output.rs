//! The reply of a container runtime to a command, which is truncated while it arrives: however it is split, it is what the whole
//! message is with both streams truncated.
#![no_main]

use leadsman_cri::limit_reply;
use leadsman_cri::wire::ExecSyncResponse;
use leadsman_probe::MAX_OUTPUT;
use prost::Message;

/// A flag, 0 for a message that is not compressed, and a length.
const PREFIX: usize = 5;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((split, reply)) = data.split_first() else {
        return;
    };
    let limited = limit_reply([reply]);
    assert_eq!(limit_reply(reply.chunks(usize::from(*split) + 1)), limited);
    let Some((&[0, a, b, c, d], cut)) = limited.split_first_chunk::<PREFIX>() else {
        return;
    };
    assert_eq!(u32::from_be_bytes([a, b, c, d]) as usize, cut.len());
    let cut = ExecSyncResponse::decode(cut).expect("what is passed on can be decoded");
    assert!(cut.stdout.len() <= MAX_OUTPUT && cut.stderr.len() <= MAX_OUTPUT);
    let length = u32::from_be_bytes([reply[1], reply[2], reply[3], reply[4]]) as usize;
    // The protocol's own decoder refuses more.
    if let Ok(mut whole) = ExecSyncResponse::decode(&reply[PREFIX..PREFIX + length]) {
        whole.stdout.truncate(MAX_OUTPUT);
        whole.stderr.truncate(MAX_OUTPUT);
        assert_eq!(cut, whole);
    }
});
