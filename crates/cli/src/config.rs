//! The configuration file of `overspill run --config`: TOML, with the same options under the same names. Unknown keys and wrong
//! values are errors that name the line.

use overspill_linux::device_spec::{self, DeviceSpec, Medium, SpecError};
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The longest file, in bytes. A longer one was given by mistake, and might never end.
const BYTES_MAX: u64 = 1 << 20;

/// The content of a file. Values are as on the command line, and checked in the same place.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// `--memory`.
    pub memory: Option<String>,
    /// `--policy`.
    pub policy: Option<String>,
    /// `--engine`.
    pub engine: Option<String>,
    /// `--name`.
    pub name: Option<String>,
    /// `--stats`.
    #[serde(default)]
    pub stats: bool,
    /// `--stats-file`.
    pub stats_file: Option<PathBuf>,
    /// `--best-effort`.
    #[serde(default)]
    pub best_effort: bool,
    /// `--no-encrypt`.
    #[serde(default)]
    pub no_encrypt: bool,
    /// `--no-load-control`.
    #[serde(default)]
    pub no_load_control: bool,
    /// `--no-halt-poll`.
    #[serde(default)]
    pub no_halt_poll: bool,
    /// `--no-follow-pointers`.
    #[serde(default)]
    pub no_follow_pointers: bool,
    /// `--no-compress`.
    #[serde(default)]
    pub no_compress: bool,
    /// `--swap`.
    #[serde(default, deserialize_with = "swaps")]
    pub swap: Vec<Swap>,
}

/// The devices, with a message for those who write them in another way.
fn swaps<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Swap>, D::Error> {
    struct Swaps;
    impl<'de> Visitor<'de> for Swaps {
        type Value = Vec<Swap>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table [[swap]] for each swap device, with its kind and path")
        }
        fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
            Err(de::Error::custom(
                "there may be several swap devices, so each is a table in two brackets: write [[swap]], not [swap]",
            ))
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut devices: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some(device) = devices.next_element()? {
                all.push(device);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_any(Swaps)
}

/// A `[[swap]]` table.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Swap {
    kind: Kind,
    path: Option<PathBuf>,
    #[serde(default)]
    paths: Vec<PathBuf>,
    size: Option<String>,
    prio: Option<i16>,
    force: Option<bool>,
    algo: Option<String>,
    align: Option<String>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    File,
    Block,
    Compressed,
}

/// Reads a file.
///
/// # Errors
/// One line: what is wrong, and where in the file.
pub fn read(path: &Path) -> Result<Config, String> {
    let unread = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => "is not text in UTF-8; name a TOML file".into(),
        _ => format!("cannot be read: {error}"),
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unread)?;
    // bytes first, because the limit may cut a character in two, which is not the file's mistake
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unread)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err("is longer than 1 MiB, which no configuration is; name a TOML file".into());
    }
    bytes.as_slice().read_to_string(&mut text).map_err(unread)?;
    parse(&text)
}

/// Reads a file's text.
///
/// # Errors
/// One line: what is wrong, and where.
pub fn parse(text: &str) -> Result<Config, String> {
    toml::from_str(text).map_err(|error| {
        let line =
            error.span().map_or(0, |span| text.as_bytes()[..span.start.min(text.len())].iter().filter(|b| **b == b'\n').count())
                + 1;
        let message = error.message().replace('\n', "; ");
        format!("line {line}: {message}")
    })
}

impl Swap {
    /// Its name in an error, behind its number: its first place, if it has one.
    pub fn label(&self) -> String {
        self.path.iter().chain(&self.paths).next().map_or_else(String::new, |path| format!(" ({})", path.display()))
    }

    /// The device.
    ///
    /// # Errors
    /// As [`device_spec::parse`].
    pub fn device(&self) -> Result<DeviceSpec, SpecError> {
        let fail = |why: &str| Err(SpecError::new(why));
        if self.path.is_some() && !self.paths.is_empty() {
            return fail("has path and paths; write one of them");
        }
        let mut paths = self.path.iter().chain(&self.paths).cloned();
        let medium = match (self.kind, paths.next()) {
            (Kind::File, Some(path)) => Medium::File(path),
            (Kind::Block, Some(path)) => Medium::Block { path, force: self.force == Some(true) },
            (Kind::Compressed, None) => Medium::Compressed(match &self.algo {
                Some(name) => device_spec::algorithm(name)?,
                None => device_spec::Algorithm::default(),
            }),
            (Kind::File | Kind::Block, None) => return fail("names no path; write path = \"/a/directory\", or paths = [...]"),
            (Kind::Compressed, Some(_)) => return fail("has a path, and compressed devices have none"),
        };
        if self.force.is_some() && self.kind != Kind::Block {
            return fail("has force, and only block devices have it");
        }
        if self.algo.is_some() && self.kind != Kind::Compressed {
            return fail("has algo, and only compressed devices have it");
        }
        if self.align.is_some() && self.kind != Kind::File {
            return fail("has align, and only files have it");
        }
        let align = self.align.as_deref().map_or(Ok(false), device_spec::align)?;
        let size = self.size.as_deref().map(device_spec::size).transpose()?;
        let mut device = DeviceSpec::from(medium);
        (device.more, device.size, device.priority, device.align) = (paths.collect(), size, self.prio, align);
        device.checked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXAMPLE: &str = "memory = \"2G\"\nstats-file = \"/x\"\n[[swap]]\nkind = \"file\"\npath = \"/a,b\"\nsize = \"50G\"\nprio = 3\nalign = \"extents\"\n\
                           [[swap]]\nkind = \"block\"\npath = \"/dev/x\"\nforce = true\n\
                           [[swap]]\nkind = \"file\"\npaths = [\"/b\", \"/c,d\"]\n";

    #[test]
    fn an_example() {
        let config = parse(EXAMPLE).unwrap();
        assert_eq!((config.memory.as_deref(), config.stats), (Some("2G"), false));
        let devices: Vec<_> = config.swap.iter().map(|d| d.device().unwrap().encode()).collect();
        assert_eq!(devices, ["file:/a\\,b,size=53687091200,prio=3,align=extents", "block:/dev/x,force", "file:/b,path=/c\\,d"]);
        assert_eq!(config.swap[2].label(), " (/b)");
        assert_eq!(parse(""), Ok(Config::default()));
    }

    /// The documentation promised the same options in the file, but two were missing.
    #[test]
    fn every_switch_can_be_set() {
        let text = "stats = true\nbest-effort = true\nno-encrypt = true\nno-load-control = true\n\
                    no-halt-poll = true\nno-follow-pointers = true\nno-compress = true\n";
        let on = Config {
            stats: true,
            best_effort: true,
            no_encrypt: true,
            no_load_control: true,
            no_halt_poll: true,
            no_follow_pointers: true,
            no_compress: true,
            ..Config::default()
        };
        assert_eq!(parse(text), Ok(on));
        assert_eq!(parse(&text.replace("true", "false")), Ok(Config::default()));
    }

    #[test]
    fn what_is_no_configuration_file_is_not_read_for_ever() {
        let read = |path: &str| read(Path::new(path)).expect_err(path);
        assert!(read("/dev/zero").contains("longer than 1 MiB"));
        assert!(read("/nonexistent").contains("cannot be read: No such file"));
        let place = std::env::temp_dir().join(format!("overspill-config-{}", std::process::id()));
        let path = place.to_str().unwrap();
        std::fs::write(&place, b"name = \"\xff\"").unwrap();
        assert!(read(path).contains("not text in UTF-8"));
        let long = format!("name = \"a\"\n#{}", "\u{e4}".repeat(BYTES_MAX as usize / 2));
        std::fs::write(&place, &long).unwrap();
        assert!(read(path).contains("longer than 1 MiB"), "cut within a sign");
        std::fs::write(&place, &long[..(BYTES_MAX - 1) as usize / 2 * 2]).unwrap();
        assert_eq!(super::read(&place).map(|config| config.name), Ok(Some("a".into())));
        std::fs::remove_file(place).unwrap();
    }

    #[test]
    fn mistakes_have_their_line() {
        for (text, words) in [
            ("\nmemry = \"2G\"", ["line 2: ", "memry"]),
            ("memory = 2", ["line 1: ", "string"]),
            ("memory = \"2G\"\n[[swap]]\nkind = \"file\"\npth = \"/a\"", ["line 4: ", "pth"]),
            ("[[swap]]\nkind = \"tape\"", ["line 2: ", "tape"]),
            ("[[swap]]\npath = \"/a\"", ["line 1: ", "kind"]),
            ("[[swap]]\nkind = \"file\"\nprio = 99999", ["line 3: ", "99999"]),
            ("memory = ", ["line 1: ", ""]),
            ("no-encrypt = 1", ["line 1: ", "boolean"]),
            ("memory = \"2G\"\n[swap]\nkind = \"file\"", ["line 2: ", "write [[swap]], not [swap]"]),
            ("\nswap = \"/tmp\"", ["line 2: ", "a table [[swap]] for each"]),
        ] {
            let error = parse(text).expect_err(text);
            assert!(words.iter().all(|w| error.contains(w)) && !error.contains('\n'), "{text:?}: {error}");
        }
        for (text, word) in [
            ("kind = \"file\"", "no path"),
            ("kind = \"compressed\"\npath = \"/a\"", "has a path"),
            ("kind = \"file\"\npath = \"/a\"\nforce = true", "only block"),
            ("kind = \"file\"\npath = \"/a\"\nalgo = \"lz4\"", "only compressed"),
            ("kind = \"block\"\npath = \"/a\"\nalign = \"extents\"", "only files"),
            ("kind = \"file\"\npath = \"/a\"\nalign = \"pages\"", "there is extents"),
            ("kind = \"file\"\npath = \"/a\"\nsize = \"1G,prio=3\"", "1G,prio=3"),
            ("kind = \"file\"\npath = \"\"", "no place"),
            ("kind = \"file\"\npaths = []", "no path"),
            ("kind = \"file\"\npaths = [\"/a\", \"/a\"]", "the place /a twice"),
            ("kind = \"file\"\npath = \"/a\"\npaths = [\"/b\"]", "write one of them"),
            ("kind = \"compressed\"\nsize = \"8M\"\npaths = [\"/b\"]", "has a path"),
        ] {
            let config = parse(&format!("[[swap]]\n{text}")).unwrap();
            let error = config.swap[0].device().expect_err(text).to_string();
            assert!(error.contains(word), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(at in 0..EXAMPLE.len(), bytes in prop::collection::vec(any::<u8>(), 0..8), cut in 0..6usize) {
            let mut text = EXAMPLE.as_bytes().to_vec();
            text.splice(at..(at + cut).min(EXAMPLE.len()), bytes);
            let text = String::from_utf8_lossy(&text);
            match parse(&text) {
                Ok(config) => config.swap.iter().for_each(|d| _ = d.device()),
                Err(error) => prop_assert!(error.starts_with("line ") && !error.contains('\n'), "{}", error),
            }
        }
    }
}
