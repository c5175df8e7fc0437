//! Policy specifications, `NAME[:KEY=VALUE,...]`: how they are read, written and checked.

use super::{DEFAULT, NAMES, TABLE};
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

/// The most parameters of a policy.
pub const PARAMS_MAX: usize = 4;

/// The values that a parameter may have.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// Any number from the first to the second.
    Number(f64, f64),
    /// A whole number from the first to the second.
    Whole(u64, u64),
    /// One of these words; the first is kept as 0, the second as 1, ...
    Words(&'static [&'static str]),
    /// This word, kept as -1, or a number from the first to the second (both not negative).
    WordOrNumber(&'static str, f64, f64),
}

/// A parameter of a policy.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Its name.
    pub key: &'static str,
    /// Its default, as it would be written.
    pub default: &'static str,
    /// Its possible values.
    pub values: Values,
    /// Its meaning, with its unit and the source of the default.
    pub help: &'static str,
}

impl Param {
    fn read(&self, text: &str) -> Option<f64> {
        match self.values {
            Values::Number(least, most) => text.parse().ok().filter(|n| (least..=most).contains(n)),
            Values::Whole(least, most) => text.parse().ok().filter(|n| (least..=most).contains(n)).map(|n| n as f64),
            Values::Words(words) => words.iter().position(|word| *word == text).map(|n| n as f64),
            Values::WordOrNumber(word, ..) if word == text => Some(-1.0),
            Values::WordOrNumber(_, least, most) => text.parse().ok().filter(|n| (least..=most).contains(n)),
        }
    }
    fn write(&self, value: f64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.values {
            Values::Words(words) => write!(f, "{}={}", self.key, words[value as usize]),
            Values::WordOrNumber(word, ..) if value < 0.0 => write!(f, "{}={word}", self.key),
            _ => write!(f, "{}={value}", self.key),
        }
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Values::Number(least, most) => write!(f, "a number from {least} to {most}"),
            Values::Whole(least, most) => write!(f, "a whole number from {least} to {most}"),
            Values::Words(words) => write!(f, "{}", words.join(" or ")),
            Values::WordOrNumber(word, least, most) => write!(f, "{word} or a number from {least} to {most}"),
        }
    }
}

/// A policy with all its parameters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spec {
    row: u8,
    values: [f64; PARAMS_MAX],
}

/// The parameters of one policy.
#[derive(Clone, Copy, Debug)]
pub struct Args {
    params: &'static [Param],
    values: [f64; PARAMS_MAX],
}

impl Args {
    /// The value of `key`; for a word, its place in the list.
    ///
    /// # Panics
    /// If the policy has no such parameter.
    pub fn number(&self, key: &str) -> f64 {
        let at = self.params.iter().position(|param| param.key == key).expect("a parameter of the policy");
        self.values[at]
    }
    /// The value of a whole number or a word.
    ///
    /// # Panics
    /// As [`Args::number`].
    pub fn whole(&self, key: &str) -> u64 {
        self.number(key) as u64
    }
    /// `memory` pages times the value, rounded down, but at least 1 page.
    ///
    /// # Panics
    /// As [`Args::number`].
    pub fn share(&self, key: &str, memory: u32) -> u32 {
        ((self.number(key) * memory as f64) as u32).max(1)
    }
}

impl Spec {
    /// The policy called `name` with its defaults.
    pub fn named(name: &str) -> Option<Spec> {
        let row = NAMES.iter().position(|n| *n == name)?;
        let mut values = [0.0; PARAMS_MAX];
        for (value, param) in values.iter_mut().zip(TABLE[row].params) {
            *value = param.read(param.default).expect("a default is a good value");
        }
        Some(Spec { row: row as u8, values })
    }
    /// The policy's name.
    pub fn name(&self) -> &'static str {
        NAMES[self.row as usize]
    }
    /// Its place in [`TABLE`].
    pub fn row(&self) -> usize {
        self.row as usize
    }
    /// Its parameters.
    pub fn args(&self) -> Args {
        Args { params: TABLE[self.row as usize].params, values: self.values }
    }
    /// The most ghosts that it keeps live, for `memory` pages.
    pub fn ghosts(&self, memory: u32) -> u32 {
        (memory as u64 * TABLE[self.row as usize].ghosts_permille as u64 / 1000) as u32
    }
}

impl Default for Spec {
    fn default() -> Self {
        Spec::named(DEFAULT).expect("the default is in the table")
    }
}

/// As it would be written, with the parameters that are not the default.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let plain = Spec::named(self.name()).expect("it is in the table");
        let mut mark = ':';
        for (i, param) in TABLE[self.row as usize].params.iter().enumerate() {
            if self.values[i] != plain.values[i] {
                write!(f, "{mark}")?;
                param.write(self.values[i], f)?;
                mark = ',';
            }
        }
        Ok(())
    }
}

/// The error in a specification.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SpecError {
    /// There is no policy of that name.
    Policy(String),
    /// A part is not `KEY=VALUE`.
    Pair(&'static str, String),
    /// The policy has no such parameter.
    Key(&'static str, String),
    /// The parameter is given twice.
    Twice(&'static str, &'static str),
    /// The parameter cannot have that value.
    Value(&'static str, &'static str, String),
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let params = |name: &str| TABLE.iter().find(|info| info.name == name).map_or(&[][..], |info| info.params);
        let keys = |name: &str| params(name).iter().map(|p| p.key).collect::<Vec<_>>().join(", ");
        match self {
            SpecError::Policy(name) => write!(f, "there is no replacement policy {name:?}, only {}", NAMES.join(", ")),
            SpecError::Pair(policy, text) => {
                write!(f, "{text:?} is no parameter of policy {policy}: write {policy}:KEY=VALUE,KEY=VALUE with keys of ")?;
                if params(policy).is_empty() { write!(f, "which it has none") } else { write!(f, "{}", keys(policy)) }
            }
            SpecError::Key(policy, key) if params(policy).is_empty() => {
                write!(f, "policy {policy} has no parameters, so {key:?} cannot be set: leave it out")
            }
            SpecError::Key(policy, key) => write!(f, "policy {policy} has no parameter {key:?}, only {}", keys(policy)),
            SpecError::Twice(policy, key) => write!(f, "parameter {key} of policy {policy} is given twice: leave one out"),
            SpecError::Value(policy, key, value) => {
                let values = params(policy).iter().find(|p| p.key == *key).map(|p| p.values);
                write!(f, "parameter {key} of policy {policy} cannot be {value:?}")?;
                values.map_or(Ok(()), |values| write!(f, ": it is {values}"))
            }
        }
    }
}

impl core::error::Error for SpecError {}

impl FromStr for Spec {
    type Err = SpecError;

    /// Reads `NAME[:KEY=VALUE,...]`. Allocates only for an error.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let mut spec = Spec::named(name).ok_or_else(|| SpecError::Policy(name.to_owned()))?;
        let (name, params) = (spec.name(), TABLE[spec.row as usize].params);
        let mut given = [false; PARAMS_MAX];
        for part in rest.into_iter().flat_map(|rest| rest.split(',')) {
            let (key, value) = part.split_once('=').ok_or_else(|| SpecError::Pair(name, part.to_owned()))?;
            let at = params.iter().position(|p| p.key == key).ok_or_else(|| SpecError::Key(name, key.to_owned()))?;
            if core::mem::replace(&mut given[at], true) {
                return Err(SpecError::Twice(name, params[at].key));
            }
            spec.values[at] = params[at].read(value).ok_or_else(|| SpecError::Value(name, params[at].key, value.to_owned()))?;
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(text: &str) -> String {
        text.parse::<Spec>().expect_err("it is no good").to_string()
    }

    #[test]
    fn specs_are_read_and_written() {
        for info in TABLE {
            assert!(info.params.len() <= PARAMS_MAX, "{}", info.name);
            let spec: Spec = info.name.parse().expect("a name");
            assert_eq!(spec.to_string(), info.name, "defaults are not written");
            for param in info.params {
                let full = format!("{}:{}={}", info.name, param.key, param.default);
                assert_eq!(full.parse::<Spec>().expect("the default"), spec, "{full}");
            }
        }
        let spec: Spec = "2q:kout=0.75,kin=0.1".parse().expect("good");
        assert_eq!((spec.args().number("kin"), spec.args().number("kout")), (0.1, 0.75));
        assert_eq!(spec.to_string(), "2q:kin=0.1,kout=0.75");
        assert_eq!(spec.to_string().parse(), Ok(spec));
        assert_eq!(Spec::default().name(), DEFAULT);
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(say("best").contains("\"best\", only use-once, use-once-window, fifo"));
        assert_eq!(say("2q:in=3"), "policy 2q has no parameter \"in\", only kin, kout");
        assert_eq!(say("2q:kin=2"), "parameter kin of policy 2q cannot be \"2\": it is a number from 0.01 to 0.99");
        assert_eq!(say("2q:kin=.2,kin=.3"), "parameter kin of policy 2q is given twice: leave one out");
        assert!(say("2q:kin").contains("write 2q:KEY=VALUE"));
        assert!(say("2q:").contains("\"\" is no parameter of policy 2q"));
        assert!(say("2q:kin=NaN").contains("cannot be \"NaN\""));
        assert_eq!(say("clock:enter=2"), "parameter enter of policy clock cannot be \"2\": it is 0 or 1");
        assert!(say("fifo:size=3").contains("policy fifo has no parameters"));
        assert!(say("fifo:x").contains("which it has none"));
    }
}
