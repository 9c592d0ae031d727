//! The answer of `ExecSync`, cut while it arrives. A command may write 16 MiB, the runtime sends them in one
//! message, and a probe reads 10 KiB: without this a handful of talkative commands would cost the agent more
//! memory than all else it does. Bytes go in as they come; out comes one message with both streams cut.
//!
//! Only what it takes to find the way through gRPC's framing and protobuf's fields is parsed here; statuses,
//! trailers and decoding stay tonic's. A message that makes no sense leaves as one that tonic refuses.

use leadsman_probe::MAX_OUTPUT;
use prost::{
    Message,
    bytes::{BufMut, Bytes, BytesMut},
};

use crate::wire;

/// What stands in front of each gRPC message: a flag (0: not compressed; we offer nothing else) and the length.
const PREFIX_BYTES: usize = 5;
/// A prefix with a flag that does not exist.
const NONSENSE: &[u8] = &[0xff, 0, 0, 0, 0];

/// One answer on its way.
#[derive(Debug, Default)]
pub(crate) struct Abridged {
    place: Place,
    /// How many bytes of the message are still to come.
    left: u64,
    exit_code: i32,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// Where in the answer the next byte belongs.
#[derive(Debug, Clone, Copy, Default)]
enum Place {
    /// In front of the message.
    #[default]
    Start,
    /// In its prefix.
    Prefix {
        bytes: [u8; PREFIX_BYTES],
        seen: usize,
    },
    /// In the number that names the next field.
    Key(Varint),
    /// In a field that is a number.
    Number { field: u64, value: Varint },
    /// In the length of a field that is bytes.
    Length { field: u64, value: Varint },
    /// In the bytes of a field.
    Bytes { field: u64, left: u64 },
    /// Behind the message, or behind the point where it made no sense.
    End,
}

/// The message does not follow the encoding.
#[derive(Debug, PartialEq, Eq)]
struct Nonsense;

impl Abridged {
    /// Takes the next piece of the answer and gives what takes its place: nothing, and at the end the whole message.
    pub(crate) fn push(&mut self, mut piece: &[u8]) -> Bytes {
        while !piece.is_empty() {
            let taken = match self.place {
                Place::End => return Bytes::new(),
                Place::Bytes { field, left } => self.bytes(field, left, piece),
                place => self.byte(place, piece[0]).map(|()| 1),
            };
            let Ok(taken) = taken else {
                self.place = Place::End;
                return Bytes::from_static(NONSENSE);
            };
            piece = &piece[taken..];
            if matches!(self.place, Place::Key(key) if key.is_empty()) && self.left == 0 {
                self.place = Place::End;
                return self.message();
            }
        }
        Bytes::new()
    }

    fn byte(&mut self, place: Place, byte: u8) -> Result<(), Nonsense> {
        match place {
            Place::Start | Place::Prefix { .. } => return self.prefix(place, byte),
            _ => self.left = self.left.checked_sub(1).ok_or(Nonsense)?,
        }
        self.place = match place {
            Place::Key(key) => match key.push(byte)? {
                Read::More(key) => Place::Key(key),
                Read::Whole(key) => field(key)?,
            },
            Place::Number { field, value } => match value.push(byte)? {
                Read::More(value) => Place::Number { field, value },
                Read::Whole(value) => self.number(field, value),
            },
            Place::Length { field, value } => match value.push(byte)? {
                Read::More(value) => Place::Length { field, value },
                Read::Whole(length) => self.length(field, length)?,
            },
            other => other,
        };
        Ok(())
    }

    fn prefix(&mut self, place: Place, byte: u8) -> Result<(), Nonsense> {
        let (mut bytes, seen) = match place {
            Place::Prefix { bytes, seen } => (bytes, seen),
            _ => ([0; PREFIX_BYTES], 0),
        };
        bytes[seen] = byte;
        self.place = Place::Prefix {
            bytes,
            seen: seen + 1,
        };
        if let (true, [flag, length @ ..]) = (seen + 1 == PREFIX_BYTES, bytes) {
            self.left = u32::from_be_bytes(length).into();
            self.place = if flag == 0 {
                Place::Key(Varint::default())
            } else {
                return Err(Nonsense);
            };
        }
        Ok(())
    }

    fn number(&mut self, field: u64, value: u64) -> Place {
        if field == 3 {
            // Protobuf sends a negative int32 as 64 bits; its lower half is the number.
            #[allow(clippy::cast_possible_truncation, reason = "as above")]
            let exit_code = value as i32;
            self.exit_code = exit_code;
        }
        Place::Key(Varint::default())
    }

    fn length(&mut self, field: u64, length: u64) -> Result<Place, Nonsense> {
        match length {
            0 => Ok(Place::Key(Varint::default())),
            left if left <= self.left => Ok(Place::Bytes { field, left }),
            _ => Err(Nonsense),
        }
    }

    fn bytes(&mut self, field: u64, left: u64, piece: &[u8]) -> Result<usize, Nonsense> {
        let here = usize::try_from(left).map_or(piece.len(), |left| left.min(piece.len()));
        let kept = match field {
            1 => Some(&mut self.stdout),
            2 => Some(&mut self.stderr),
            _ => None,
        };
        if let Some(kept) = kept {
            let room = MAX_OUTPUT.saturating_sub(kept.len());
            kept.extend_from_slice(&piece[..here.min(room)]);
        }
        self.left = self.left.checked_sub(here as u64).ok_or(Nonsense)?;
        self.place = match left - here as u64 {
            0 => Place::Key(Varint::default()),
            left => Place::Bytes { field, left },
        };
        Ok(here)
    }

    fn message(&mut self) -> Bytes {
        let message = wire::ExecSyncResponse {
            stdout: std::mem::take(&mut self.stdout).into(),
            stderr: std::mem::take(&mut self.stderr).into(),
            exit_code: self.exit_code,
        };
        let length = u32::try_from(message.encoded_len()).expect("both streams are cut to 10 KiB");
        let mut out = BytesMut::with_capacity(PREFIX_BYTES + message.encoded_len());
        out.put_u8(0);
        out.put_u32(length);
        message.encode(&mut out).expect("a BytesMut grows");
        out.freeze()
    }
}

/// Where a field leads to, by its key: the number of the field and how it is written.
fn field(key: u64) -> Result<Place, Nonsense> {
    let field = key >> 3;
    match key & 7 {
        0 => Ok(Place::Number {
            field,
            value: Varint::default(),
        }),
        1 => Ok(Place::Bytes { field: 0, left: 8 }),
        2 => Ok(Place::Length {
            field,
            value: Varint::default(),
        }),
        5 => Ok(Place::Bytes { field: 0, left: 4 }),
        _ => Err(Nonsense),
    }
}

/// A number of protobuf, seven bits a byte, the lowest first.
#[derive(Debug, Clone, Copy, Default)]
struct Varint {
    value: u64,
    bits: u32,
}

enum Read {
    More(Varint),
    Whole(u64),
}

impl Varint {
    fn is_empty(self) -> bool {
        self.bits == 0
    }

    fn push(self, byte: u8) -> Result<Read, Nonsense> {
        if self.bits > 63 {
            return Err(Nonsense);
        }
        let value = self.value | u64::from(byte & 0x7f) << self.bits;
        Ok(if byte & 0x80 == 0 {
            Read::Whole(value)
        } else {
            Read::More(Varint {
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

    fn abridge(answer: &[u8], piece: usize) -> Vec<u8> {
        let mut abridged = Abridged::default();
        answer
            .chunks(piece)
            .flat_map(|piece| abridged.push(piece))
            .collect()
    }

    #[test]
    fn answers_keep_their_beginning_and_their_exit_code_however_they_are_cut_into_pieces() {
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
                let abridged = abridge(&framed(&whole.encode_to_vec()), piece);
                assert_eq!(
                    abridged,
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
                abridge(&framed(&message), piece),
                framed(&known.encode_to_vec())
            );
        }
    }

    #[test]
    fn what_makes_no_sense_becomes_an_error() {
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
                assert_eq!(abridge(&answer, piece), NONSENSE, "{what}");
            }
        }
    }
}
