//! Sizes as people write and read them: `64M`, `2G`, `1.5G`, `4096K`, `8388608`, `25%`.
//!
//! Units are powers of 1024, as in `docker --memory`, `systemd` and `ulimit`: `K`, `M`, `G`, `T`, `P`, in either case, with or
//! without a trailing `B` or `iB`. Numbers are read as integers with a decimal fraction, not as floating point, so `1.1G` means
//! the same on every machine; what does not come out as a whole byte is rounded down.

use core::fmt;

/// A size as it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// A number of bytes.
    Bytes(u64),
    /// A share of a total still to be found, in hundredths of a per cent: `25%` is 2500.
    Share(u32),
}

impl Size {
    /// The size in bytes, where a share is one of `total` bytes.
    pub fn of(self, total: u64) -> u64 {
        match self {
            Size::Bytes(n) => n,
            // At most u64::MAX * 10_000 / 10_000: the result fits.
            Size::Share(hundredths) => (u128::from(total) * u128::from(hundredths) / u128::from(WHOLE)) as u64,
        }
    }
}

/// 100 % in the unit of [`Size::Share`].
const WHOLE: u32 = 10_000;

/// What is wrong with a text that was meant as a size. `Display` gives a message without its subject: "is not a size: ...".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SizeError {
    /// No text at all.
    Empty,
    /// It does not begin with a number.
    NoNumber,
    /// A unit that is not known.
    Unit,
    /// A fraction of a byte.
    Fraction,
    /// More bytes than 64 bits can count.
    TooLarge,
    /// A share that is not above 0 % and at most 100 %.
    Share,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SizeError::Empty => "is empty; write a size such as 64M, 2G, 1.5G, 4096K or 25%",
            SizeError::NoNumber => "is not a size; write one such as 64M, 2G, 1.5G, 4096K or 25%",
            SizeError::Unit => "does not end in a unit that Overspill knows; use K, M, G, T, P or %, as in 64M or 25%",
            SizeError::Fraction => "is a fraction of a byte; did you forget the unit, as in 1.5G?",
            SizeError::TooLarge => "is larger than any memory",
            SizeError::Share => "is not a share of memory; write one above 0% and up to 100%",
        })
    }
}

impl std::error::Error for SizeError {}

/// Reads a size.
///
/// ```
/// use overspill_linux::size::{Size, parse};
/// assert_eq!(parse("1.5G"), Ok(Size::Bytes(1_610_612_736)));
/// assert_eq!(parse("25%").unwrap().of(8 << 30), 2 << 30);
/// ```
///
/// # Errors
/// [`SizeError`] says what is wrong with the text.
pub fn parse(text: &str) -> Result<Size, SizeError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(SizeError::Empty);
    }
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = !whole.is_empty() || !fraction.is_empty();
    if !digits || fraction.contains('.') || (number.contains('.') && fraction.is_empty()) {
        return Err(SizeError::NoNumber);
    }
    let unit = unit.trim_start().to_ascii_lowercase();
    if unit == "%" {
        let share = scale(whole, fraction, 100).ok_or(SizeError::Share)?;
        return match u32::try_from(share) {
            Ok(n) if (1..=WHOLE).contains(&n) => Ok(Size::Share(n)),
            _ => Err(SizeError::Share),
        };
    }
    let letter = unit.strip_suffix("ib").filter(|rest| !rest.is_empty());
    let shift = match letter.or(unit.strip_suffix('b')).unwrap_or(&unit) {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => return Err(SizeError::Unit),
    };
    if shift == 0 && !fraction.is_empty() {
        return Err(SizeError::Fraction);
    }
    scale(whole, fraction, 1 << shift).map(Size::Bytes).ok_or(SizeError::TooLarge)
}

/// `whole.fraction * factor`, rounded down; `None` if it does not fit. Digits after the eighteenth of the fraction do not count.
fn scale(whole: &str, fraction: &str, factor: u64) -> Option<u64> {
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
    let (mut numerator, mut denominator) = (0u128, 1u128);
    for digit in fraction.bytes().take(18) {
        numerator = numerator * 10 + u128::from(digit - b'0');
        denominator *= 10;
    }
    // numerator < 10^18 < 2^60 and factor <= 2^50, so the product has at most 110 bits.
    let part = numerator * u128::from(factor) / denominator;
    u64::try_from(u128::from(whole) * u128::from(factor) + part).ok()
}

/// Writes a number of bytes for people: three digits and a unit, such as `1.50 GiB`, `64.0 MiB` or `512 B`.
///
/// ```
/// assert_eq!(overspill_linux::size::human(1_610_612_736), "1.50 GiB");
/// ```
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.5 and more would print as 1024 of the smaller unit.
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// Writes a number of bytes the way [`parse`] reads it back without loss, in the largest unit that divides it: `64M`, `1536M`,
/// `100`.
pub fn exact(bytes: u64) -> String {
    for (unit, shift) in [("P", 50), ("T", 40), ("G", 30), ("M", 20), ("K", 10)] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64M", 64 << 20),
            ("64m", 64 << 20),
            ("64MB", 64 << 20),
            ("64MiB", 64 << 20),
            ("64 MiB", 64 << 20),
            (" 2G ", 2 << 30),
            ("1.5G", 3 << 29),
            (".5G", 1 << 29),
            ("4096K", 4 << 20),
            ("4096B", 4096),
            ("1T", 1 << 40),
            ("1.1G", 1_181_116_006),
            ("16383P", 16383 << 50),
            ("18446744073709551615", u64::MAX),
            ("0.0000000000000000000000000001G", 0),
        ] {
            assert_eq!(parse(text), Ok(Size::Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn shares() {
        assert_eq!(parse("25%"), Ok(Size::Share(2500)));
        assert_eq!(parse("12.5 %"), Ok(Size::Share(1250)));
        assert_eq!(Size::Share(2500).of(1000), 250);
        assert_eq!(Size::Share(10_000).of(u64::MAX), u64::MAX);
        for text in ["0%", "100.01%", "101%", "99999999999999999999%", "0.001%"] {
            assert_eq!(parse(text), Err(SizeError::Share), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size() {
        use SizeError::*;
        for (text, error) in [
            ("", Empty),
            ("  ", Empty),
            ("M", NoNumber),
            ("-5M", NoNumber),
            ("+5M", NoNumber),
            (".", NoNumber),
            ("5.", NoNumber),
            ("5.M", NoNumber),
            ("1.2.3G", NoNumber),
            ("lots", NoNumber),
            ("\u{661}G", NoNumber),
            ("12x", Unit),
            ("1e9", Unit),
            ("5Gi G", Unit),
            ("5iB", Unit),
            ("5%%", Unit),
            ("2G2", Unit),
            ("1.5", Fraction),
            ("1.5B", Fraction),
            ("16384P", TooLarge),
            ("18446744073709551616", TooLarge),
        ] {
            assert_eq!(parse(text), Err(error), "{text:?}");
            assert!(!error.to_string().contains('\n'));
        }
    }

    #[test]
    fn printing() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (64 << 20, "64.0 MiB"),
            (3 << 29, "1.50 GiB"),
            (1 << 30, "1.00 GiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            (100 << 30, "100 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(human(bytes), text);
        }
        for bytes in [0, 1, 100, 4096, 64 << 20, 3 << 29, u64::MAX, 1 << 63] {
            assert_eq!(parse(&exact(bytes)), Ok(Size::Bytes(bytes)));
        }
        assert_eq!(exact(3 << 29), "1536M");
    }
}
