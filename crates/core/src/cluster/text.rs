//! Texts that must fit somewhere.

/// At most `bytes` of a text, truncated on the boundary of a character.
pub fn truncate(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}
