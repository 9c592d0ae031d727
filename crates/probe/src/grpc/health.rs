//! The messages of `grpc.health.v1.Health/Check`, and gRPC's framing around them. Pure.
//!
//! Two messages of one field each; written by hand, so that what a hostile server sends is bounded and cannot surprise.

/// The path of the call.
pub(super) const PATH: &str = "/grpc.health.v1.Health/Check";

/// `SERVING` of `HealthCheckResponse.ServingStatus`.
pub(super) const SERVING: i32 = 1;

/// A message, or its frame, that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed health check response")]
pub(super) struct Malformed;

/// A framed `HealthCheckRequest`.
pub(super) fn request(service: &str) -> Vec<u8> {
    let mut message = Vec::with_capacity(service.len() + 11);
    if !service.is_empty() {
        message.push(0x0a);
        push_varint(&mut message, service.len());
        message.extend_from_slice(service.as_bytes());
    }
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut frame = Vec::with_capacity(message.len() + 5);
    frame.push(0);
    frame.extend_from_slice(&length.to_be_bytes());
    frame.append(&mut message);
    frame
}

fn push_varint(to: &mut Vec<u8>, mut value: usize) {
    while value > 0x7f {
        to.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    to.push(value.to_le_bytes()[0]);
}

/// The status in a framed `HealthCheckResponse`.
pub(super) fn status(frame: &[u8]) -> Result<i32, Malformed> {
    let (head, message) = frame.split_first_chunk::<5>().ok_or(Malformed)?;
    let [compressed, length @ ..] = *head;
    // Nothing was offered that it could be compressed with.
    if compressed != 0 || u32::from_be_bytes(length) as usize != message.len() {
        return Err(Malformed);
    }
    decode(message)
}

/// Field 1 of a message, the last one counting; 0 if there is none. Unknown fields are skipped.
fn decode(mut rest: &[u8]) -> Result<i32, Malformed> {
    let mut status = 0;
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        if key >> 3 == 0 {
            return Err(Malformed);
        }
        match key & 7 {
            0 => {
                let value = varint(&mut rest)?;
                if key >> 3 == 1 {
                    // An enum is the low 32 bits, as in every implementation.
                    status = ((value & 0xffff_ffff) as u32).cast_signed();
                }
            }
            1 => skip(&mut rest, 8)?,
            2 => {
                let length = varint(&mut rest)?;
                skip(&mut rest, usize::try_from(length).map_err(|_| Malformed)?)?;
            }
            5 => skip(&mut rest, 4)?,
            _ => return Err(Malformed),
        }
    }
    Ok(status)
}

fn varint(rest: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first().ok_or(Malformed)?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Malformed)
}

fn skip(rest: &mut &[u8], length: usize) -> Result<(), Malformed> {
    *rest = rest.get(length..).ok_or(Malformed)?;
    Ok(())
}

/// A status by its name.
pub(super) fn status_name(status: i32) -> String {
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
    fn asks_for_a_service() {
        assert_eq!(request(""), [0, 0, 0, 0, 0]);
        assert_eq!(request("ab"), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        let long = request(&"s".repeat(300));
        assert_eq!(long[..8], [0, 0, 0, 1, 47, 0x0a, 0xac, 2]);
        assert_eq!(long.len(), 308);
    }

    #[rstest]
    #[case(&[], Ok(0))]
    #[case(&[0x08, 1], Ok(1))]
    #[case(&[0x08, 2, 0x08, 1], Ok(1))]
    #[case(&[0x08, 0x81, 0], Ok(1))]
    #[case(&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], Ok(-1))]
    #[case(&[0x12, 3, 1, 2, 3, 0x08, 1], Ok(1))]
    #[case(&[0x08, 1, 0x19, 1, 2, 3, 4, 5, 6, 7, 8, 0x25, 1, 2, 3, 4, 0x30, 7], Ok(1))]
    #[case(&[0x0a, 1, 7], Ok(0))]
    #[case(&[0x08], Err(Malformed))]
    #[case(&[0x08, 0x80], Err(Malformed))]
    #[case(&[0x12, 9, 1], Err(Malformed))]
    #[case(&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], Err(Malformed))]
    #[case(&[0x00, 1], Err(Malformed))]
    #[case(&[0x0b], Err(Malformed))]
    #[case(&[0x0f], Err(Malformed))]
    #[case(&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], Err(Malformed))]
    fn reads_a_status(#[case] message: &[u8], #[case] expected: Result<i32, Malformed>) {
        assert_eq!(status(&framed(message)), expected);
    }

    #[rstest]
    #[case(&[])]
    #[case(&[0, 0, 0, 0])]
    #[case(&[1, 0, 0, 0, 2, 8, 1])]
    #[case(&[0, 0, 0, 0, 3, 8, 1])]
    #[case(&[0, 0, 0, 0, 1, 8, 1])]
    fn refuses_a_malformed_frame(#[case] frame: &[u8]) {
        assert_eq!(status(frame), Err(Malformed));
    }

    proptest! {
        #[test]
        fn decodes_any_bytes_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = status(&bytes);
            let _ = status(&framed(&bytes));
        }

        #[test]
        fn a_status_is_read_among_unknown_fields(
            value in 0_i32..4, field in 2_u8..16, before in any::<bool>(), unknown in prop::collection::vec(any::<u8>(), 0..40)
        ) {
            let known = [0x08, u8::try_from(value).unwrap()];
            let mut other = vec![field << 3 | 2, u8::try_from(unknown.len()).unwrap()];
            other.extend(unknown);
            let message = if before { [&other[..], &known].concat() } else { [&known[..], &other].concat() };
            prop_assert_eq!(status(&framed(&message)), Ok(value));
        }
    }
}
