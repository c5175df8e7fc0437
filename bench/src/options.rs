//! The command line of `access` and `bench-region`.

use crate::patterns::Pattern;
use std::fmt;

/// Help text; the caller replaces `{program}`.
const HELP: &str = "\
Touches memory in several patterns and prints one line of JSON for each.

  --size SIZE       how much memory, as 64M or 1G [1G]
  --memory SIZE     the budget, for programs that page for themselves [256M]
  --swap DIR        where the rest goes, for the same programs [$TMPDIR or /tmp]
  --patterns LIST   which, in order, by comma [all: fill,sequential,random,update,
                    hot-scan,hot-scan-spread,burst,stride]
  --accesses N      accesses of the random patterns [as many as there are pages]
  --threads N       threads that share the accesses [1]
  --seed N          of the random numbers [1]

fill comes first whatever LIST says: the others check what it wrote. Exit status: 2 for a wrong
option, 3 for a wrong value in memory.";

/// The options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How much memory to touch, in bytes; whole pages.
    pub size: usize,
    /// The budget, in bytes, for a program that pages for itself. `access` ignores it: its budget is set from outside.
    pub memory: usize,
    /// The swap place for such a program.
    pub swap: Option<String>,
    /// Which patterns, in order, [`Pattern::Fill`] first.
    pub patterns: Vec<Pattern>,
    /// How many accesses a random pattern makes.
    pub accesses: usize,
    /// How many threads share them.
    pub threads: usize,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Why there are no options.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Help was asked for.
    Help,
    /// An option is wrong; the text says how.
    Wrong(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Help => f.write_str(HELP),
            Refusal::Wrong(text) => write!(f, "{text}\n\n{HELP}"),
        }
    }
}

impl Options {
    /// Reads the process's arguments. On a mistake, or if help is asked for, prints a text and ends the process.
    pub fn from_args() -> Self {
        Self::parse(std::env::args().skip(1)).unwrap_or_else(|refusal| match refusal {
            Refusal::Help => {
                println!("{refusal}");
                std::process::exit(0)
            }
            Refusal::Wrong(_) => {
                eprintln!("{refusal}");
                std::process::exit(2)
            }
        })
    }

    /// Reads `args`.
    ///
    /// # Errors
    /// [`Refusal`]: help was asked for, or an option is unknown, lacks its value or has an impossible one.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, Refusal> {
        let mut options = Options {
            size: 1 << 30,
            memory: 256 << 20,
            swap: None,
            patterns: Pattern::ALL.to_vec(),
            accesses: 0,
            threads: 1,
            seed: 1,
        };
        let mut args = args.into_iter();
        while let Some(name) = args.next() {
            if name == "--help" || name == "-h" {
                return Err(Refusal::Help);
            }
            let value = args.next().ok_or_else(|| Refusal::Wrong(format!("{name} needs a value")))?;
            let wrong = || Refusal::Wrong(format!("{name} {value}: not understood"));
            match name.as_str() {
                "--size" => options.size = size(&value).ok_or_else(wrong)?,
                "--memory" => options.memory = size(&value).ok_or_else(wrong)?,
                "--swap" => options.swap = Some(value),
                "--patterns" => options.patterns = patterns(&value).ok_or_else(wrong)?,
                "--accesses" => options.accesses = value.parse().map_err(|_| wrong())?,
                "--threads" => options.threads = value.parse().map_err(|_| wrong())?,
                "--seed" => options.seed = value.parse().map_err(|_| wrong())?,
                _ => return Err(Refusal::Wrong(format!("{name}: no such option"))),
            }
        }
        options.size = options.size / crate::patterns::PAGE * crate::patterns::PAGE;
        if options.size == 0 || options.threads == 0 {
            return Err(Refusal::Wrong("at least one page and one thread are needed".into()));
        }
        if options.accesses == 0 {
            options.accesses = options.size / crate::patterns::PAGE;
        }
        Ok(options)
    }
}

/// `64M`, `1G`, or plain bytes.
fn size(text: &str) -> Option<usize> {
    let (number, shift) = match text.chars().last()?.to_ascii_uppercase() {
        'K' => (&text[..text.len() - 1], 10),
        'M' => (&text[..text.len() - 1], 20),
        'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    number.parse::<usize>().ok()?.checked_mul(1 << shift)
}

/// Names with commas between them, `fill` put first.
fn patterns(text: &str) -> Option<Vec<Pattern>> {
    let mut list = vec![Pattern::Fill];
    for name in text.split(',') {
        let pattern = Pattern::ALL.into_iter().find(|p| p.name() == name)?;
        if pattern != Pattern::Fill {
            list.push(pattern);
        }
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, Refusal> {
        Options::parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn defaults_are_the_issues_sizes() {
        let options = parse("").unwrap();
        assert_eq!((options.size, options.memory), (1 << 30, 256 << 20));
        assert_eq!(options.accesses, 262_144);
        assert_eq!(options.patterns, Pattern::ALL);
    }

    #[test]
    fn fill_is_always_first() {
        let options = parse("--patterns update,random --size 64M --threads 2").unwrap();
        assert_eq!(options.patterns, [Pattern::Fill, Pattern::Update, Pattern::Random]);
        assert_eq!((options.size, options.threads), (64 << 20, 2));
    }

    #[test]
    fn wrong_options_are_refused() {
        for line in ["--size", "--size 1X", "--size 100", "--threads 0", "--patterns all", "--what 1"] {
            assert!(matches!(parse(line), Err(Refusal::Wrong(_))), "{line}");
        }
        assert_eq!(parse("--help"), Err(Refusal::Help));
    }
}
