//! Numbers and fields of text lines.

/// A decimal number.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |value, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { value.checked_mul(10)?.checked_add(u64::from(digit)) }
    })
}

/// A hexadecimal number without `0x`.
pub(crate) fn hex(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |value, &byte| {
        let digit = char::from(byte).to_digit(16)?;
        if value >> 60 != 0 { None } else { Some(value << 4 | u64::from(digit)) }
    })
}

/// A decimal number, or a hexadecimal one with `0x`.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    match text.strip_prefix(b"0x").or(text.strip_prefix(b"0X")) {
        Some(digits) => hex(digits),
        None => decimal(text),
    }
}

/// The words between blanks and tabs.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty())
}

/// A piece of the trace for an error message: printable, and short.
pub(crate) fn quote(text: &[u8]) -> String {
    const SHOWN: usize = 40;
    let shown = &text[..text.len().min(SHOWN)];
    let dots = if text.len() > SHOWN { "..." } else { "" };
    format!("\"{}{dots}\"", shown.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_up_to_64_bits_and_not_beyond() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(decimal(b"18446744073709551616"), None);
        assert_eq!(hex(b"ffffffffffffffff"), Some(u64::MAX));
        assert_eq!(hex(b"10000000000000000"), None);
        assert_eq!(number(b"0x1F"), Some(31));
        for text in [&b""[..], b"0x", b"-1", b"+1", b"1.0", b"1f", b" 1"] {
            assert_eq!(number(text), None, "{}", quote(text));
        }
    }

    #[test]
    fn quotes_are_short_and_printable() {
        assert_eq!(quote(b"a\"\x00\xff"), r#""a\"\x00\xff""#);
        assert!(quote(&[b'x'; 1000]).len() < 50);
    }
}
