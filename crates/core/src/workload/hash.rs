//! Hashes as names, labels and annotations contain them.

use sha2::{Digest, Sha256};

/// The letters of an encoded hash: no vowels, so that no words come out
/// (`k8s.io/apimachinery/pkg/util/rand/rand.go`).
const ALPHANUMERICS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// A text with each character replaced by one of few (`SafeEncodeString`, in the same file).
pub fn safe_encode(text: &str) -> String {
    let chars = text.chars().map(|c| {
        let place = u32::from(c) as usize % ALPHANUMERICS.len();
        char::from(ALPHANUMERICS[place])
    });
    chars.collect()
}

/// SHA-256 of a text, encoded: 64 characters.
pub fn sha256_of(text: &str) -> String {
    let digest = Sha256::digest(text);
    let digits = digest.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    // Hexadecimal before it is encoded, as in `hash` of `OpenKruise`
    // (`pkg/control/sidecarcontrol/hash.go`).
    let hex = digits.filter_map(|digit| char::from_digit(digit.into(), 16));
    safe_encode(&hex.collect::<String>())
}

/// FNV-1 of 32 bits, as Go's `hash/fnv.New32`: multiplied first, unlike FNV-1a.
pub fn fnv1_32(bytes: impl IntoIterator<Item = u8>) -> u32 {
    let hash = |hash: u32, byte: u8| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte);
    bytes.into_iter().fold(0x811c_9dc5, hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    // SCS-30
    #[test]
    fn digits_and_letters_are_encoded_as_kubernetes_encodes_them() {
        assert_eq!(safe_encode("0123456789"), "456789bcdf");
        // `a` is 97, and 97 % 27 is the place of `v`.
        assert_eq!(safe_encode("abcdef"), "vwxz24");
    }

    // SCS-34
    #[test]
    fn fnv_is_the_one_that_multiplies_first() {
        // `fnv_test.go` of Go.
        for (text, hash) in [
            ("", 0x811c_9dc5_u32),
            ("a", 0x050c_5d7e),
            ("ab", 0x7077_2d38),
            ("abc", 0x439c_2f4b),
        ] {
            assert_eq!(fnv1_32(text.bytes()), hash, "{text}");
        }
    }
}
