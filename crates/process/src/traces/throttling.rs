//! How a collector says when a request may be sent again: `RetryInfo` among the details of its status (OTLP specification,
//! "OTLP/gRPC Throttling"; `google/rpc/status.proto`, `google/rpc/error_details.proto`). Pure.

use std::time::Duration;

use prost::Message;

/// The type of [`RetryInfo`] in an [`Any`].
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// `google.rpc.Status`, as far as it is used.
#[derive(Clone, PartialEq, Message)]
struct DetailedStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<WireDuration>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
struct WireDuration {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// How long the client is to wait, by the details of a status; zero where the collector names no time. None if the details
/// do not have it, or cannot be read.
pub(super) fn retry_delay(details: &[u8]) -> Option<Duration> {
    let status = DetailedStatus::decode(details).ok()?;
    let info = status
        .details
        .iter()
        .find(|any| any.type_url == RETRY_INFO)?;
    let info = RetryInfo::decode(info.value.as_slice()).ok()?;
    let delay = info.retry_delay.unwrap_or_default();
    let seconds = u64::try_from(delay.seconds).unwrap_or_default();
    let nanos = u64::try_from(delay.nanos).unwrap_or_default();
    Some(Duration::from_secs(seconds).saturating_add(Duration::from_nanos(nanos)))
}

/// The details of a status with which a collector asks for this delay.
#[cfg(any(test, feature = "fake"))]
pub(super) fn details_with_delay(delay: Duration) -> Vec<u8> {
    let retry_delay = WireDuration {
        seconds: i64::try_from(delay.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(delay.subsec_nanos()).unwrap_or_default(),
    };
    let info = RetryInfo {
        retry_delay: Some(retry_delay),
    };
    let info = Any {
        type_url: RETRY_INFO.to_owned(),
        value: info.encode_to_vec(),
    };
    DetailedStatus {
        details: vec![info],
    }
    .encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_read_among_other_details() {
        let delay = Duration::from_millis(2500);
        assert_eq!(retry_delay(&details_with_delay(delay)), Some(delay));
        // As Go's `errdetails` writes a RetryInfo of one second, behind a code and a message.
        let written = b"\x08\x08\x12\x04full\x1a\x30\x0a\x28type.googleapis.com/google.rpc.RetryInfo\x12\x04\x0a\x02\x08\x01";
        assert_eq!(retry_delay(written), Some(Duration::from_secs(1)));
        let other = Any {
            type_url: "type.googleapis.com/google.rpc.DebugInfo".to_owned(),
            value: Vec::new(),
        };
        let without = DetailedStatus {
            details: vec![other],
        };
        for details in [&without.encode_to_vec()[..], b"", b"\xff"] {
            assert_eq!(retry_delay(details), None, "{details:?}");
        }
    }

    #[test]
    fn a_negative_delay_is_none_to_wait_for() {
        let info = RetryInfo {
            retry_delay: Some(WireDuration {
                seconds: -1,
                nanos: -1,
            }),
        };
        let info = Any {
            type_url: RETRY_INFO.to_owned(),
            value: info.encode_to_vec(),
        };
        let status = DetailedStatus {
            details: vec![info],
        };
        assert_eq!(retry_delay(&status.encode_to_vec()), Some(Duration::ZERO));
    }
}
