//! The hash by which backends recognise what they installed or saw, and a baseline a document that cannot be read. Nothing that is secret is hashed here.

use sha2::{Digest, Sha256};

/// The hash of some texts, in hexadecimal.
pub(crate) fn hash<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut digest = Sha256::new();
    for text in texts {
        digest.update(text.len().to_be_bytes());
        digest.update(text.as_bytes());
    }
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or_default();
    digest.finalize().iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
