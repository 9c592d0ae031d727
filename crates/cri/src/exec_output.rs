//! The reply to `ExecSync`, truncated while it arrives. A command may write 16 MiB (`maxMsgSize` of containerd's and the
//! kubelet's CRI connections), the runtime sends them in one message, and a probe reads 10 KiB: without this a handful of
//! commands with much output would cost the agent more memory than all else that it does. Bytes go in as they come; out comes
//! one message with both streams truncated.
//!
//! Parsed here is only what is needed to find the fields: gRPC's framing ("gRPC over HTTP2", Length-Prefixed-Message) and
//! protobuf's keys and lengths ("Protocol Buffers: Encoding"). Statuses, trailers and decoding remain tonic's. A malformed
//! message becomes one that tonic refuses.

use leadsman_probe::MAX_OUTPUT;
use prost::{
    Message,
    bytes::{BufMut, Bytes, BytesMut},
};

use crate::wire;

/// The prefix of each gRPC message: a flag (0: not compressed; nothing else is offered) and the length.
const PREFIX_BYTES: usize = 5;
/// A prefix with a flag that does not exist, which tonic refuses.
const MALFORMED: &[u8] = &[0xff, 0, 0, 0, 0];

/// Truncates one reply.
#[derive(Debug, Default)]
pub(crate) struct OutputLimiter {
    position: ParsePosition,
    /// Bytes of the message that are still to come.
    left: u64,
    exit_code: i32,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// The part of the reply that the next byte belongs to.
#[derive(Debug, Clone, Copy, Default)]
enum ParsePosition {
    /// Nothing was read yet.
    #[default]
    Start,
    /// The prefix of the message.
    Prefix {
        bytes: [u8; PREFIX_BYTES],
        seen: usize,
    },
    /// The key of the next field.
    Key(Varint),
    /// A field that is a varint.
    Number { field: u64, value: Varint },
    /// The length of a field.
    Length { field: u64, value: Varint },
    /// The bytes of a field.
    Bytes { field: u64, left: u64 },
    /// The message is over, or malformed from here on.
    End,
}

/// The message is not valid protobuf.
#[derive(Debug, PartialEq, Eq)]
struct InvalidProtobuf;

impl OutputLimiter {
    /// Takes the next piece of the reply and returns its replacement: nothing, and at the end the whole message.
    pub(crate) fn limit_piece(&mut self, mut piece: &[u8]) -> Bytes {
        while !piece.is_empty() {
            let taken = match self.position {
                // A unary reply has one message; trailers are frames of their own.
                ParsePosition::End => return Bytes::new(),
                ParsePosition::Bytes { field, left } => self.take_bytes(field, left, piece),
                position => self.take_byte(position, piece[0]).map(|()| 1),
            };
            let Ok(taken) = taken else {
                self.position = ParsePosition::End;
                return Bytes::from_static(MALFORMED);
            };
            piece = &piece[taken..];
            // A message has no end of its own: it is where its length is used up, which may only be between two
            // fields.
            if matches!(self.position, ParsePosition::Key(key) if key.is_empty()) && self.left == 0
            {
                self.position = ParsePosition::End;
                return self.take_message();
            }
        }
        Bytes::new()
    }

    fn take_byte(&mut self, position: ParsePosition, byte: u8) -> Result<(), InvalidProtobuf> {
        match position {
            ParsePosition::Start | ParsePosition::Prefix { .. } => {
                return self.take_prefix_byte(position, byte);
            }
            _ => self.left = self.left.checked_sub(1).ok_or(InvalidProtobuf)?,
        }
        self.position = match position {
            ParsePosition::Key(key) => match key.push_byte(byte)? {
                VarintRead::More(key) => ParsePosition::Key(key),
                VarintRead::Complete(key) => position_of_field(key)?,
            },
            ParsePosition::Number { field, value } => match value.push_byte(byte)? {
                VarintRead::More(value) => ParsePosition::Number { field, value },
                VarintRead::Complete(value) => self.take_number(field, value),
            },
            ParsePosition::Length { field, value } => match value.push_byte(byte)? {
                VarintRead::More(value) => ParsePosition::Length { field, value },
                VarintRead::Complete(length) => self.begin_bytes(field, length)?,
            },
            other => other,
        };
        Ok(())
    }

    fn take_prefix_byte(
        &mut self,
        position: ParsePosition,
        byte: u8,
    ) -> Result<(), InvalidProtobuf> {
        let (mut bytes, seen) = match position {
            ParsePosition::Prefix { bytes, seen } => (bytes, seen),
            _ => ([0; PREFIX_BYTES], 0),
        };
        bytes[seen] = byte;
        self.position = ParsePosition::Prefix {
            bytes,
            seen: seen + 1,
        };
        if let (true, [flag, length @ ..]) = (seen + 1 == PREFIX_BYTES, bytes) {
            self.left = u32::from_be_bytes(length).into();
            self.position = if flag == 0 {
                ParsePosition::Key(Varint::default())
            } else {
                return Err(InvalidProtobuf);
            };
        }
        Ok(())
    }

    fn take_number(&mut self, field: u64, value: u64) -> ParsePosition {
        if field == 3 {
            // A negative int32 is encoded as ten bytes, sign-extended to 64 bits; the lower half is the number.
            #[allow(clippy::cast_possible_truncation, reason = "as above")]
            let exit_code = value as i32;
            self.exit_code = exit_code;
        }
        ParsePosition::Key(Varint::default())
    }

    /// The stream that a field of `ExecSyncResponse` (`api.proto`) is; none for one of a later version, which is skipped.
    fn stream_of_field(&mut self, field: u64) -> Option<&mut Vec<u8>> {
        match field {
            1 => Some(&mut self.stdout),
            2 => Some(&mut self.stderr),
            _ => None,
        }
    }

    fn begin_bytes(&mut self, field: u64, length: u64) -> Result<ParsePosition, InvalidProtobuf> {
        // The last of several fields of one number counts ("Protocol Buffers: Encoding", "Last One Wins").
        if let Some(former) = self.stream_of_field(field) {
            former.clear();
        }
        match length {
            0 => Ok(ParsePosition::Key(Varint::default())),
            left if left <= self.left => Ok(ParsePosition::Bytes { field, left }),
            _ => Err(InvalidProtobuf),
        }
    }

    fn take_bytes(
        &mut self,
        field: u64,
        left: u64,
        piece: &[u8],
    ) -> Result<usize, InvalidProtobuf> {
        let here = usize::try_from(left).map_or(piece.len(), |left| left.min(piece.len()));
        if let Some(kept) = self.stream_of_field(field) {
            let room = MAX_OUTPUT.saturating_sub(kept.len());
            kept.extend_from_slice(&piece[..here.min(room)]);
        }
        self.left = self.left.checked_sub(here as u64).ok_or(InvalidProtobuf)?;
        self.position = match left - here as u64 {
            0 => ParsePosition::Key(Varint::default()),
            left => ParsePosition::Bytes { field, left },
        };
        Ok(here)
    }

    fn take_message(&mut self) -> Bytes {
        let message = wire::ExecSyncResponse {
            stdout: std::mem::take(&mut self.stdout).into(),
            stderr: std::mem::take(&mut self.stderr).into(),
            exit_code: self.exit_code,
        };
        let length =
            u32::try_from(message.encoded_len()).expect("both streams are truncated to 10 KiB");
        let mut out = BytesMut::with_capacity(PREFIX_BYTES + message.encoded_len());
        out.put_u8(0);
        out.put_u32(length);
        message.encode(&mut out).expect("a BytesMut grows");
        out.freeze()
    }
}

/// The replacement of a reply that comes in these pieces.
#[cfg(any(test, feature = "wire"))]
pub fn limit_reply<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut limiter = OutputLimiter::default();
    let pieces = pieces.into_iter();
    pieces
        .flat_map(|piece| limiter.limit_piece(piece))
        .collect()
}

/// The position after a key, which holds the number of the field and its wire type.
fn position_of_field(key: u64) -> Result<ParsePosition, InvalidProtobuf> {
    let field = key >> 3;
    match key & 7 {
        0 => Ok(ParsePosition::Number {
            field,
            value: Varint::default(),
        }),
        // A field of fixed width, which this message does not have, is skipped under a number that
        // no field has.
        1 => Ok(ParsePosition::Bytes { field: 0, left: 8 }),
        2 => Ok(ParsePosition::Length {
            field,
            value: Varint::default(),
        }),
        5 => Ok(ParsePosition::Bytes { field: 0, left: 4 }),
        // Groups, which proto3 does not have.
        _ => Err(InvalidProtobuf),
    }
}

/// A varint that is being read: seven bits a byte, the lowest first.
#[derive(Debug, Clone, Copy, Default)]
struct Varint {
    value: u64,
    bits: u32,
}

enum VarintRead {
    More(Varint),
    Complete(u64),
}

impl Varint {
    fn is_empty(self) -> bool {
        self.bits == 0
    }

    fn push_byte(self, byte: u8) -> Result<VarintRead, InvalidProtobuf> {
        // A varint has ten bytes at most ("Protocol Buffers: Encoding").
        if self.bits > 63 {
            return Err(InvalidProtobuf);
        }
        let value = self.value | u64::from(byte & 0x7f) << self.bits;
        Ok(if byte & 0x80 == 0 {
            VarintRead::Complete(value)
        } else {
            VarintRead::More(Varint {
                value,
                bits: self.bits + 7,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut out = vec![0];
        out.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        out.extend(message);
        out
    }

    fn limited(answer: &[u8], piece: usize) -> Vec<u8> {
        limit_reply(answer.chunks(piece))
    }

    #[test]
    fn output_is_truncated_and_the_exit_code_kept_however_the_reply_is_split() {
        for (out, err, exit_code) in [
            (0, 0, 0),
            (1, 0, 1),
            (MAX_OUTPUT, 3, 127),
            (MAX_OUTPUT + 1, MAX_OUTPUT * 5, -1),
            (300_000, 70_000, i32::MIN),
        ] {
            let bytes = |length: usize| {
                (0..length)
                    .map(|at| u8::try_from(at % 251).unwrap())
                    .collect::<Bytes>()
            };
            let whole = wire::ExecSyncResponse {
                stdout: bytes(out),
                stderr: bytes(err),
                exit_code,
            };
            let cut = wire::ExecSyncResponse {
                stdout: bytes(out.min(MAX_OUTPUT)),
                stderr: bytes(err.min(MAX_OUTPUT)),
                exit_code,
            };
            for piece in [1, 2, 5, 7, 1000, 16_384, usize::MAX] {
                let limiter = limited(&framed(&whole.encode_to_vec()), piece);
                assert_eq!(
                    limiter,
                    framed(&cut.encode_to_vec()),
                    "{out} {err} {exit_code} in pieces of {piece}"
                );
            }
        }
    }

    #[test]
    fn fields_of_later_versions_are_skipped() {
        let known = wire::ExecSyncResponse {
            stdout: "out".into(),
            stderr: "".into(),
            exit_code: 2,
        };
        let mut message = vec![0x21, 1, 2, 3, 4, 5, 6, 7, 8]; // field 4, eight bytes
        message.extend([0x2d, 1, 2, 3, 4]); // field 5, four bytes
        message.extend([0x30, 0xff, 0x01]); // field 6, a number
        message.extend(known.encode_to_vec());
        message.extend([0x3a, 2, b'h', b'i']); // field 7, bytes
        for piece in [1, 3, usize::MAX] {
            assert_eq!(
                limited(&framed(&message), piece),
                framed(&known.encode_to_vec())
            );
        }
    }

    #[test]
    fn of_a_field_that_is_there_twice_the_last_counts() {
        let message = [
            0x0a, 2, b'n', b'o', 0x12, 1, b'e', 0x18, 1, 0x0a, 1, b'y', 0x12, 0,
        ];
        let decoded = wire::ExecSyncResponse::decode(&message[..]).unwrap();
        for piece in [1, 3, usize::MAX] {
            let expected = framed(&decoded.encode_to_vec());
            assert_eq!(limited(&framed(&message), piece), expected);
        }
    }

    #[test]
    fn a_malformed_reply_becomes_an_error() {
        for (what, answer) in [
            ("a compressed message", vec![1, 0, 0, 0, 1, 0]),
            ("a field longer than its message", framed(&[0x0a, 5, 1])),
            ("a message that ends within a number", {
                let mut cut = framed(&[0x18, 0x80]);
                cut.push(1);
                cut
            }),
            (
                "a number of more than 64 bits",
                framed(&[
                    0x18, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1,
                ]),
            ),
            ("a group", framed(&[0x0b])),
            ("four bytes, one of them there", {
                let mut cut = framed(&[0x2d, 1]);
                cut.extend([1, 1, 1]);
                cut
            }),
        ] {
            for piece in [1, usize::MAX] {
                assert_eq!(limited(&answer, piece), MALFORMED, "{what}");
            }
        }
    }
}
