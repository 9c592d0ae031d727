//! How a gRPC call ended: `grpc-status` and `grpc-message`. Pure.

use http::HeaderMap;

use crate::message::bounded_text;

/// The code a server without the called service or method answers with.
pub(super) const UNIMPLEMENTED: u32 = 12;
/// The code of a server that ran out of the time it was given.
pub(super) const DEADLINE_EXCEEDED: u32 = 4;

/// A call's status.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Status {
    /// 0 is success.
    pub(super) code: u32,
    /// The server's words, decoded.
    pub(super) message: String,
}

impl Status {
    /// The status in headers or trailers, if there is one. A code that is no number is `UNKNOWN`.
    pub(super) fn of(map: &HeaderMap) -> Option<Self> {
        let code = map.get("grpc-status")?.to_str().ok();
        let message = map
            .get("grpc-message")
            .map_or(&b""[..], |value| value.as_bytes());
        Some(Self {
            code: code.and_then(|code| code.parse().ok()).unwrap_or(2),
            message: percent_decode(message),
        })
    }

    /// Name and words.
    pub(super) fn words(&self) -> String {
        let code = match NAMES.get(self.code as usize) {
            Some(name) => (*name).to_owned(),
            None => format!("code {}", self.code),
        };
        match self.message.as_str() {
            "" => code,
            message => format!("{code}: {message}"),
        }
    }
}

const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// What is malformed stays as it stands.
fn percent_decode(raw: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match after {
            [high, low, after @ ..] if byte == b'%' => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => {
                    bytes.push(high << 4 | low);
                    rest = after;
                }
                _ => bytes.push(byte),
            },
            _ => bytes.push(byte),
        }
    }
    bounded_text(&[&bytes])
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("0", "", "OK")]
    #[case("5", "unknown service", "NOT_FOUND: unknown service")]
    #[case("5", "%C3%9F%20x%", "NOT_FOUND: ß x%")]
    #[case("14", "%ff%zz%1", "UNAVAILABLE: \u{fffd}%zz%1")]
    #[case("77", "x", "code 77: x")]
    #[case("x", "", "UNKNOWN")]
    #[case("-1", "", "UNKNOWN")]
    fn says_how_a_call_ended(#[case] code: &str, #[case] message: &str, #[case] expected: &str) {
        let mut map = HeaderMap::new();
        map.insert("grpc-status", code.parse().unwrap());
        map.insert("grpc-message", message.parse().unwrap());
        assert_eq!(Status::of(&map).unwrap().words(), expected);
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes(text in ".{0,20}") {
            let encoded: String = text.bytes().flat_map(|byte| format!("%{byte:02x}").into_bytes()).map(char::from).collect();
            prop_assert_eq!(percent_decode(encoded.as_bytes()), text);
        }

        #[test]
        fn decodes_any_bytes_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            let _ = percent_decode(&bytes);
        }
    }
}
