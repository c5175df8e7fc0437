//! Sizes of memory for the lab: `1000,2000`, `64M,1G`, `10%`, `LOW:HIGH:STEPS`.

use overspill_linux::size::{self, Size};
use std::str::FromStr;

/// A size that becomes pages once the trace is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum One {
    Pages(u64),
    Bytes(u64),
    /// A share of the trace's unique pages.
    Share(Size),
}

/// The value of `--memory`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sizes {
    text: String,
    kind: Kind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    List(Vec<One>),
    Range(One, One, u32),
}

/// The most sizes. More are a mistake.
const STEPS_MAX: u32 = 1000;

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kind = match text.split(':').collect::<Vec<_>>()[..] {
            [list] => Kind::List(list.split(',').map(one).collect::<Result<_, _>>()?),
            [low, high, steps] => match steps.trim().parse() {
                Ok(steps) if (2..=STEPS_MAX).contains(&steps) => Kind::Range(one(low)?, one(high)?, steps),
                _ => return Err(format!("{steps:?} is not a number of steps; write one from 2 to {STEPS_MAX}, as in 100:10000:5")),
            },
            _ => return Err("write a list, as in 1000,2000, or LOW:HIGH:STEPS, as in 100:10000:5".into()),
        };
        Ok(Sizes { text: text.to_owned(), kind })
    }
}

fn one(text: &str) -> Result<One, String> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let pages = text.parse().map_err(|_| format!("{text} pages are more than any memory has"))?;
        return if pages == 0 { Err("a memory of no pages".into()) } else { Ok(One::Pages(pages)) };
    }
    match size::parse(text) {
        Ok(Size::Bytes(bytes)) => Ok(One::Bytes(bytes)),
        Ok(share) => Ok(One::Share(share)),
        Err(error) => Err(format!("{text:?} {error}, or a plain number of pages")),
    }
}

impl Sizes {
    /// The sizes in pages of a trace, rising, each once. The error is a message about `--memory`.
    pub fn pages(&self, unique_pages: u64, page_bytes: u32) -> Result<Vec<u32>, String> {
        let pages = |one: One| {
            let pages = match one {
                One::Pages(pages) => pages,
                One::Bytes(bytes) => bytes / u64::from(page_bytes),
                One::Share(share) => share.of(unique_pages).max(1),
            };
            match u32::try_from(pages) {
                Ok(0) => Err(format!("--memory {}: less than a page of {page_bytes} bytes", self.text)),
                Ok(pages) => Ok(pages),
                Err(_) => Err(format!("--memory {}: {pages} pages are more than the lab counts ({})", self.text, u32::MAX)),
            }
        };
        let mut all = match &self.kind {
            Kind::List(list) => list.iter().map(|&one| pages(one)).collect::<Result<Vec<_>, _>>()?,
            &Kind::Range(low, high, steps) => {
                let (low, high) = (pages(low)?, pages(high)?);
                if low > high {
                    return Err(format!("--memory {}: {low} pages to {high}; the lower end comes first", self.text));
                }
                spread(low, high, steps)
            }
        };
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }
}

/// `steps` sizes, at least 2, from `low` to `high`, evenly on a logarithmic scale.
pub fn spread(low: u32, high: u32, steps: u32) -> Vec<u32> {
    let ratio = f64::from(high) / f64::from(low);
    (0..steps).map(|step| (f64::from(low) * ratio.powf(f64::from(step) / f64::from(steps - 1))).round() as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(text: &str) -> Result<Vec<u32>, String> {
        text.parse::<Sizes>()?.pages(10_000, 4096)
    }

    #[test]
    fn lists_and_ranges() {
        assert_eq!(pages("2000,1000,1000"), Ok(vec![1000, 2000]));
        assert_eq!(pages("1M,8K"), Ok(vec![2, 256]));
        assert_eq!(pages("10%, 100%"), Ok(vec![1000, 10_000]));
        assert_eq!(pages("0.01%"), Ok(vec![1]));
        assert_eq!(pages("100:10000:3"), Ok(vec![100, 1000, 10_000]));
        assert_eq!(pages("1:3:1000"), Ok(vec![1, 2, 3]));
        assert_eq!(pages("4K:4K:2"), Ok(vec![1]));
    }

    #[test]
    fn mistakes_are_told() {
        for (text, words) in [
            ("", "empty"),
            ("0", "no pages"),
            ("10,", "empty"),
            ("ten", "is not a size"),
            ("10:20", "LOW:HIGH:STEPS"),
            ("10:20:1", "number of steps"),
            ("10:20:x", "number of steps"),
            ("20:10:3", "lower end"),
            ("1K", "less than a page"),
            ("1P", "more than the lab counts"),
            ("99999999999999999999", "more than any memory"),
            ("1.5", "unit"),
        ] {
            let error = pages(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
