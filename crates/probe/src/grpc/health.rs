//! The messages of `grpc.health.v1.Health/Check` (`grpc/health/v1/health.proto` of grpc-proto), and gRPC's framing around
//! them ("gRPC over HTTP2", Length-Prefixed-Message). Pure.

use prost::Message;

/// The path of the call.
pub(super) const PATH: &str = "/grpc.health.v1.Health/Check";

/// `SERVING` of `HealthCheckResponse.ServingStatus`.
pub(super) const SERVING: i32 = 1;

/// The flag of a message that is not compressed, and its length.
const PREFIX_BYTES: usize = 5;

#[derive(Clone, PartialEq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, Message)]
struct HealthCheckResponse {
    /// `ServingStatus`; a value of a later version is kept.
    #[prost(int32, tag = "1")]
    status: i32,
}

/// A reply that is no framed `HealthCheckResponse`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed health check response")]
pub(super) struct MalformedReply;

/// A framed `HealthCheckRequest`.
pub(super) fn frame_request(service: &str) -> Vec<u8> {
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let message = request.encode_to_vec();
    let length = u32::try_from(message.len()).expect("no service name is 4 GiB long");
    [&[0], &length.to_be_bytes()[..], &message].concat()
}

/// The serving status in a framed `HealthCheckResponse`.
pub(super) fn serving_status(frame: &[u8]) -> Result<i32, MalformedReply> {
    let (prefix, message) = frame
        .split_first_chunk::<PREFIX_BYTES>()
        .ok_or(MalformedReply)?;
    let [compressed, length @ ..] = *prefix;
    // The request offers no compression.
    if compressed != 0 || u32::from_be_bytes(length) as usize != message.len() {
        return Err(MalformedReply);
    }
    let response = HealthCheckResponse::decode(message).map_err(|_| MalformedReply)?;
    Ok(response.status)
}

/// The name of a serving status.
pub(super) fn serving_status_name(status: i32) -> String {
    match status {
        0 => "UNKNOWN".to_owned(),
        SERVING => "SERVING".to_owned(),
        2 => "NOT_SERVING".to_owned(),
        3 => "SERVICE_UNKNOWN".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn framed(message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).unwrap();
        [&[0], &length.to_be_bytes()[..], message].concat()
    }

    #[test]
    fn a_request_names_the_service() {
        assert_eq!(frame_request(""), [0, 0, 0, 0, 0]);
        assert_eq!(frame_request("ab"), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        let long = frame_request(&"s".repeat(300));
        assert_eq!(long[..8], [0, 0, 0, 1, 47, 0x0a, 0xac, 2]);
        assert_eq!(long.len(), 308);
    }

    #[rstest]
    #[case::absent(&[], Ok(0))]
    #[case::serving(&[0x08, 1], Ok(1))]
    #[case::twice(&[0x08, 2, 0x08, 1], Ok(1))]
    #[case::negative(&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], Ok(-1))]
    #[case::unknown_fields(&[0x12, 3, 1, 2, 3, 0x08, 1, 0x25, 1, 2, 3, 4], Ok(1))]
    #[case::another_type(&[0x0a, 1, 7], Err(MalformedReply))]
    #[case::cut(&[0x08, 0x80], Err(MalformedReply))]
    #[case::too_long(&[0x12, 9, 1], Err(MalformedReply))]
    fn a_status_is_read_from_its_message(
        #[case] message: &[u8],
        #[case] expected: Result<i32, MalformedReply>,
    ) {
        assert_eq!(serving_status(&framed(message)), expected);
    }

    #[rstest]
    #[case(&[])]
    #[case(&[0, 0, 0, 0])]
    #[case(&[1, 0, 0, 0, 2, 8, 1])]
    #[case(&[0, 0, 0, 0, 3, 8, 1])]
    #[case(&[0, 0, 0, 0, 1, 8, 1])]
    fn a_malformed_frame_is_refused(#[case] frame: &[u8]) {
        assert_eq!(serving_status(frame), Err(MalformedReply));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = serving_status(&bytes);
            let _ = serving_status(&framed(&bytes));
        }
    }
}
