//! The regular expression that the output of a probe has to match, and the texts that its values stand in: an author's, an
//! author's and a container's, divided by a byte 0.
#![no_main]

use leadsman_api::{limits, marker};
use leadsman_core::cluster::FieldErrors;
use leadsman_core::cluster::go_json::stored_bytes;
use leadsman_core::podprobe::output::{ExpectedOutput, ValueText};

libfuzzer_sys::fuzz_target!(|input: &str| {
    let mut parts = input.splitn(3, '\0');
    let [matches, text, output] = [(); 3].map(|()| parts.next().unwrap_or_default());
    let read = |wire: &marker::ExpectedOutput| {
        let mut errors = Vec::new();
        let read = ExpectedOutput::read(wire, &mut FieldErrors::new(&mut errors, "output"));
        read.filter(|_| errors.is_empty())
    };
    let text = ValueText::parse(text);
    let names = text.names().count();
    let Some(expected) = read(&marker::ExpectedOutput {
        matches: matches.to_owned(),
        mismatch: None,
    }) else {
        return;
    };
    assert_eq!(read(&expected.to_wire()).as_ref(), Some(&expected));
    let values = match expected.judge(output) {
        Ok(values) => values,
        Err(mismatch) => return assert!(mismatch.message.ends_with(output)),
    };
    let bytes = values.values().map(|value| stored_bytes(&**value));
    assert!(bytes.sum::<usize>() <= limits::OUTPUT_VALUES_BYTES);
    let filled = text.fill(Some(&values)).len();
    assert!(filled <= input.len() + names * limits::OUTPUT_VALUES_BYTES);
});
