//! Tests for things that would disturb a reader: documents that are too long or too wide, private words, dead links, files that are
//! never named, and crates that use others they must not.
//!
//! Every finding is one line with the place and the problem. Edit the lists of words below when a word comes or goes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The widest line of a document or comment, as in rustfmt.toml, in columns.
const COLUMNS_MAX: usize = 132;

/// The most words of the pages that newcomers read first.
const WORDS_MAX: [(&str, usize); 2] = [("README.md", 1200), ("ARCHITECTURE.md", 3500)];

/// Private words of documents, what to write instead, and whether comments are free of them, too. Set that once they are.
/// ARCHITECTURE.md has the glossary.
const PRIVATE: [(&str, &str, bool); 14] = [
    ("aims", "sets the reclaim target", false),
    ("beside", "alongside, next to, compared with", false),
    ("clerk", "helper thread", true),
    ("companies", "same-CPU handlers", true),
    ("company", "same-CPU handler", true),
    ("desk", "request slot", true),
    ("doomed", "orphaned", true),
    ("duty", "wake policy", true),
    ("owed", "pending", true),
    ("retire", "give up", false),
    ("retired", "failed", false),
    ("sentence", "message", false),
    ("sentences", "messages", false),
    ("trial", "inactive", true),
];

/// Names from the kernel, from Rust and from other tools that our documents mention.
const OF_OTHERS: [&str; 5] = [
    "__lsan_register_root_region",
    "handle_userfault",
    "pkg_check_modules",
    "thread::current",
    "userfaultfd_event_wait_completion",
];

/// Folders in which somebody once worked on this, without their slashes. A path of one is a finding.
const WORKPLACE: [&str; 3] = ["work", "tmp/w", "root"];

/// Which of our crates each crate may use. `vm` uses none; `machine` knows no kernel; `linux` and `sim` do not know each other.
const MAY_USE: [(&str, &[&str]); 15] = [
    ("crates/agent", &["overspill-vm", "overspill-swap", "overspill-machine", "overspill-linux"]),
    ("crates/capi", &["overspill"]),
    ("crates/cli", &["overspill-lab", "overspill-linux", "overspill-trace", "overspill-vm"]),
    ("crates/lab", &["overspill-sim", "overspill-vm"]),
    ("crates/linux", &["overspill-vm", "overspill-swap", "overspill-store", "overspill-machine"]),
    ("crates/machine", &["overspill-vm", "overspill-swap", "overspill-store"]),
    ("crates/overspill", &["overspill-vm", "overspill-machine", "overspill-linux"]),
    ("crates/python", &["overspill"]),
    ("crates/sim", &["overspill-vm", "overspill-swap", "overspill-store", "overspill-machine", "overspill-simkernel"]),
    ("crates/simkernel", &[]),
    ("crates/store", &["overspill-vm"]),
    ("crates/swap", &["overspill-vm"]),
    ("crates/trace", &[]),
    ("crates/vm", &[]),
    ("bench", &["overspill", "overspill-lab", "overspill-vm", "overspill-trace", "overspill-swap", "overspill-store"]),
];

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files of the repository with that ending: their paths from its root, and their texts. Built files are left out.
fn files(ending: &str) -> Vec<(String, String)> {
    fn walk(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_symlink() || name.starts_with('.') || name == "target" {
                continue;
            }
            if path.is_dir() {
                walk(&path, ending, found);
            } else if name.ends_with(ending) {
                found.push(path);
            }
        }
    }
    let root = root();
    let mut found = Vec::new();
    walk(&root, ending, &mut found);
    found.sort();
    let name = |path: &Path| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
    found.iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
}

/// Fails with one line for each finding.
fn report(findings: &[String]) {
    let mut text = String::new();
    for finding in findings {
        writeln!(text, "{finding}").unwrap();
    }
    assert!(findings.is_empty(), "{} findings:\n{text}", findings.len());
}

/// The lines of a document that are prose, with their numbers. Fenced lines are left out, and text in back quotes is blanked.
fn prose(text: &str) -> Vec<(usize, String)> {
    let (mut lines, mut fenced, mut quoted) = (Vec::new(), false, false);
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            quoted &= !line.is_empty(); // a quotation may go on in the next line, but not in the next paragraph
            let mut kept = String::new();
            for c in line.chars() {
                quoted ^= c == '`';
                kept.push(if quoted || c == '`' { ' ' } else { c });
            }
            lines.push((number, kept));
        }
    }
    lines
}

/// The words of a line, in lower case.
fn words(line: &str) -> impl Iterator<Item = String> {
    line.split(|c: char| !c.is_alphanumeric() && c != '-' && c != '_').map(str::to_lowercase)
}

/// The text of a line of Rust that is a comment and nothing else.
fn comment(line: &str) -> Option<&str> {
    Some(line.trim_start().strip_prefix("//")?.trim_start_matches(['/', '!']).trim_start())
}

#[test]
fn no_line_is_too_wide() {
    let mut findings = Vec::new();
    for (file, text) in files(".md") {
        if file.starts_with("bench/RESULTS") {
            continue; // written by commands
        }
        for (number, line) in (1..).zip(text.lines()) {
            let width = line.chars().count();
            if width > COLUMNS_MAX && !line.starts_with('|') {
                findings.push(format!("{file}:{number}: {width} columns; at most {COLUMNS_MAX}"));
            }
        }
    }
    for (file, text) in files(".rs") {
        for (number, line) in (1..).zip(text.lines()) {
            let width = line.chars().count();
            if width > COLUMNS_MAX && comment(line).is_some_and(|text| !text.starts_with('|')) {
                findings.push(format!("{file}:{number}: a comment of {width} columns; at most {COLUMNS_MAX}"));
            }
        }
    }
    report(&findings);
}

#[test]
fn first_pages_are_short() {
    let mut findings = Vec::new();
    for (file, most) in WORDS_MAX {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        let count = text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count();
        if count > most {
            findings.push(format!("{file}: {count} words; at most {most}"));
        }
    }
    report(&findings);
}

#[test]
fn no_private_words() {
    let mut findings = Vec::new();
    let mut look = |file: &str, number: usize, line: &str, is_comment: bool| {
        for word in words(line) {
            let private = |(banned, _, in_comments): &&(&str, &str, bool)| *banned == word && (*in_comments || !is_comment);
            if let Some((_, instead, _)) = PRIVATE.iter().find(private) {
                findings.push(format!("{file}:{number}: `{word}` is a word of our own; write: {instead}"));
            }
        }
    };
    for (file, text) in files(".md") {
        if file == "bench/RESULTS.md" {
            continue; // `make bench` writes it, with the words of the programs that it runs
        }
        let old = glossary_lines(&file, &text);
        for (number, line) in prose(&text) {
            if !old.contains(&number) {
                look(&file, number, &line, false);
            }
        }
    }
    for (file, text) in files(".rs") {
        if !file.ends_with("tests/tidy.rs") {
            for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| comment(line).is_some()) {
                look(&file, number, line, true);
            }
        }
    }
    report(&findings);
}

/// The lines of ARCHITECTURE.md's glossary, whose last column has the words that the code still uses.
fn glossary_lines(file: &str, text: &str) -> BTreeSet<usize> {
    let numbered = (1..).zip(text.lines()).filter(|_| file == "ARCHITECTURE.md");
    let glossary = numbered.skip_while(|(_, line)| *line != "## Glossary").skip(1);
    glossary.take_while(|(_, line)| !line.starts_with("## ")).map(|(number, _)| number).collect()
}

/// The links of a document: the number of the line, and the target.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let mut rest = line.as_str();
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            if let Some(end) = rest.find(')') {
                found.push((number, rest[..end].to_owned()));
            }
        }
    }
    found
}

/// The anchors of a document's headings, as web sites that show Markdown make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        fenced ^= line.starts_with("```");
        if let Some(heading) = line.strip_prefix('#').filter(|_| !fenced) {
            let kept = heading.trim_start_matches('#').trim().to_lowercase();
            let kept: String = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect();
            found.insert(kept.replace(' ', "-"));
        }
    }
    found
}

/// Every link of a document, as (document, line, target file, anchor).
fn resolved_links() -> Vec<(String, usize, PathBuf, String)> {
    let root = root();
    let mut found = Vec::new();
    for (file, text) in files(".md") {
        for (number, link) in links(&text) {
            if link.contains("://") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let from = root.join(&file);
            let to = if path.is_empty() { from } else { from.parent().unwrap().join(path) };
            found.push((file.clone(), number, to, anchor.to_owned()));
        }
    }
    found
}

#[test]
fn no_link_is_dead() {
    let mut findings = Vec::new();
    for (file, number, to, anchor) in resolved_links() {
        if !to.exists() {
            findings.push(format!("{file}:{number}: a link to {}, which is not there", to.display()));
        } else if !anchor.is_empty() && !anchors(&std::fs::read_to_string(&to).unwrap()).contains(&anchor) {
            findings.push(format!("{file}:{number}: a link to #{anchor}, which no heading of that page is"));
        }
    }
    report(&findings);
}

#[test]
fn every_page_is_linked() {
    let root = root();
    let linked: BTreeSet<PathBuf> = resolved_links().into_iter().filter_map(|(.., to, _)| to.canonicalize().ok()).collect();
    let pages = files(".md").into_iter().chain(files(".svg")).map(|(file, _)| file);
    let ours = pages.filter(|file| file.starts_with("docs/") || file.starts_with("bench/RESULTS"));
    let findings: Vec<_> = ours
        .filter(|file| !linked.contains(&root.join(file).canonicalize().unwrap()))
        .map(|file| format!("{file}: no page links to it"))
        .collect();
    report(&findings);
}

/// Pages and files that comments and scripts name must exist.
#[test]
fn no_comment_names_a_page_that_is_not_there() {
    let root = root();
    let decisions: Vec<String> =
        files(".md").into_iter().map(|(file, _)| file).filter(|file| file.starts_with("docs/decisions/")).collect();
    let mut findings = Vec::new();
    for (file, text) in
        files(".rs").into_iter().chain(files(".py")).chain(files(".c")).filter(|(file, _)| !file.ends_with("tests/tidy.rs"))
    {
        for (number, line) in (1..).zip(text.lines()) {
            if line.contains("ARCHITECTURE.md, section") || line.contains("ARCHITECTURE.md section") {
                findings.push(format!("{file}:{number}: sections have no numbers: name the section or a page of docs/decisions"));
            }
            for word in line.split(|c: char| !(c.is_alphanumeric() || "./-_".contains(c))) {
                let word = word.trim_end_matches('.');
                let named = word.starts_with("docs/") || word.starts_with("bench/RESULTS");
                if let Some(number_of) = word.strip_prefix("docs/decisions/") {
                    if !decisions.iter().any(|page| page.starts_with(&format!("docs/decisions/{number_of}"))) {
                        findings.push(format!("{file}:{number}: {word} is not there"));
                    }
                } else if named && word.ends_with(".md") && !root.join(word).exists() {
                    findings.push(format!("{file}:{number}: {word} is not there"));
                }
            }
        }
    }
    report(&findings);
}

/// Names in back quotes in documents must exist: files, paths of Rust, tests, counters, variables.
#[test]
fn no_page_names_what_is_gone() {
    let sources: Vec<_> = [".rs", ".py", ".c", ".cpp", ".h", ".hpp", ".toml", "Makefile"].into_iter().flat_map(files).collect();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let known: BTreeSet<&str> = sources.iter().flat_map(|(_, text)| text.split(move |c| !is_word(c))).collect();
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let mut findings = Vec::new();
    for (file, text) in files(".md").into_iter().filter(|(file, _)| file != "docs/SOURCES.md") {
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.starts_with("```")) {
            for span in line.split('`').skip(1).step_by(2).filter(|span| !OF_OTHERS.contains(span)) {
                let is_file = [".rs", ".py", ".c", ".cpp", ".h", ".hpp"].iter().any(|ending| span.ends_with(ending))
                    && !span.contains(['*', ' ']);
                let is_path = span.contains("::") && span.chars().all(|c| is_word(c) || c == ':');
                let is_variable = span.starts_with("OVERSPILL_") && span.chars().all(is_word);
                let there = if is_file {
                    sources.iter().any(|(path, _)| path == span || path.ends_with(&format!("/{span}")))
                } else if is_path || is_variable || is_name(span) && span.contains('_') {
                    span.split("::").all(|part| known.contains(part))
                } else {
                    true
                };
                if !there {
                    findings.push(format!("{file}:{number}: `{span}` is not there"));
                }
            }
        }
    }
    report(&findings);
}

/// Every command is in the README, and every option of `overspill run` on its page.
#[test]
fn commands_and_options_are_documented() {
    let help = |arguments: &[&str]| {
        let ran = std::process::Command::new(env!("CARGO_BIN_EXE_overspill")).args(arguments).output().unwrap();
        String::from_utf8(ran.stdout).unwrap()
    };
    let page = |file: &str| std::fs::read_to_string(root().join(file)).unwrap();
    let mut findings = Vec::new();
    let (readme, options) = (page("README.md"), page("docs/OPTIONS.md"));
    let named = |page: &str, name: &str| page.contains(&format!("`{name}`")) || page.contains(&format!("`{name} "));
    let table: String = readme.lines().filter(|line| line.starts_with('|')).collect();
    let all = help(&["help"]);
    assert!(all.contains("\nCommands:\n"), "{all}");
    let listed = all.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    for command in listed.filter_map(|line| line.split_whitespace().next()).filter(|command| *command != "help") {
        if !named(&table, command) && !named(&table, &format!("overspill {command}")) {
            findings.push(format!("README.md: its table has no `overspill {command}`"));
        }
    }
    for line in help(&["run", "-h"]).lines().filter(|line| line.trim_start().starts_with('-')) {
        let option = line.split_whitespace().find(|word| word.starts_with("--")).unwrap();
        if !["--help", "--version"].contains(&option) && !named(&options, option) {
            findings.push(format!("docs/OPTIONS.md: says nothing of {option}"));
        }
    }
    report(&findings);
}

/// A decision page has its situation and its decision, and the numbers of the pages have no gap.
#[test]
fn decisions_have_their_form() {
    let mut findings = Vec::new();
    let mut next = 1;
    for (file, text) in files(".md") {
        let Some(name) = file.strip_prefix("docs/decisions/").filter(|name| *name != "README.md") else { continue };
        if !name.starts_with(&format!("{next:04}-")) {
            findings.push(format!("{file}: number {next:04} should come here"));
        }
        if !text.starts_with(&format!("# {}: ", &name[..4])) {
            findings.push(format!("{file}:1: does not begin with its number"));
        }
        for part in ["\n## Context\n", "\n## Decision\n"] {
            if !text.contains(part) {
                findings.push(format!("{file}: has no section {}", part.trim()));
            }
        }
        next += 1;
    }
    report(&findings);
}

#[test]
fn crates_use_what_they_may() {
    let may: BTreeMap<_, _> = MAY_USE.into_iter().collect();
    let mut findings = Vec::new();
    for (file, text) in files("Cargo.toml") {
        let Some(folder) = file.strip_suffix("/Cargo.toml") else { continue };
        if !text.contains("overspill") || folder.contains("fuzz") || folder.contains("aead") {
            continue;
        }
        let Some(allowed) = may.get(folder) else {
            findings.push(format!("{file}: which of our crates it may use is not said in MAY_USE in {}", file!()));
            continue;
        };
        let mut section = "";
        for (number, line) in (1..).zip(text.lines()) {
            if line.starts_with('[') {
                section = line;
            }
            let name = line.split(['.', ' ', '=']).next().unwrap();
            if section == "[dependencies]" && name.starts_with("overspill") && !allowed.contains(&name) {
                findings.push(format!("{file}:{number}: {folder} must not use {name}"));
            }
        }
    }
    report(&findings);
}

/// Collects the paths of a `use`, or of an expression, that go on here after `before`: `b, c::{d, e}` in braces are `b`, `c::d` and
/// `c::e`. Returns the rest of the text.
fn paths<'t>(text: &'t str, before: &[&'t str], found: &mut Vec<Vec<&'t str>>) -> &'t str {
    let between = |c: char| c.is_whitespace() || c == ',';
    if let Some(group) = text.strip_prefix('{') {
        let mut text = group.trim_start_matches(between);
        while !text.starts_with('}') {
            let rest = paths(text, before, found);
            let next = rest.find([',', '}']).expect("a group ends"); // past `as name` and `*`
            text = rest[next..].trim_start_matches(between);
        }
        return &text[1..];
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let path = [before, &[&text[..end]]].concat();
    if let Some(rest) = text[end..].strip_prefix("::") {
        return paths(rest, &path, found);
    }
    found.push(path);
    &text[end..]
}

/// Which files of a crate each of its files imports from, by their paths without the ending and without tests. A folder's head
/// counts as a file. Its imports from its own parts do not count: a head may have a trait and list its implementations.
fn imports(sources: &[(&str, &str)]) -> BTreeMap<String, BTreeSet<String>> {
    let module = |path: &str| path.trim_end_matches(".rs").trim_end_matches("/mod").to_owned();
    let names: BTreeSet<String> = sources.iter().map(|(path, _)| module(path)).collect();
    let file_of = |path: &[&str]| (1..=path.len()).rev().map(|n| path[..n].join("/")).find(|name| names.contains(name));
    let mut all = BTreeMap::new();
    for (path, text) in sources {
        let own = module(path);
        let parents: Vec<&str> = own.split('/').collect();
        let parents = &parents[..parents.len() - 1];
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let code: String = text.lines().map(|line| line.split("//").next().unwrap().to_owned() + "\n").collect();
        let mut found = Vec::new();
        for (word, base) in [("crate::", &[][..]), ("super::", parents)] {
            for (at, _) in code.match_indices(word).filter(|(at, _)| !code[..*at].ends_with("super::")) {
                paths(&code[at + word.len()..], base, &mut found);
            }
        }
        let files = found.iter().filter_map(|path| file_of(path));
        all.insert(own.clone(), files.filter(|file| *file != own && !file.starts_with(&format!("{own}/"))).collect());
    }
    all
}

/// Files must not import each other in a circle, because none of them can be read without the others.
#[test]
fn no_import_circles() {
    let sources = files(".rs");
    let mut crates: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for (file, text) in &sources {
        if let Some((package, path)) = file.split_once("/src/")
            && package.starts_with("crates/")
        {
            crates.entry(package).or_default().push((path, text));
        }
    }
    let mut findings = Vec::new();
    for (package, sources) in crates {
        let imports = imports(&sources);
        let reached = |from: &String| {
            let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
            while let Some(file) = next.pop() {
                next.extend(imports[file].iter().filter(|file| reached.insert((*file).clone())));
            }
            reached
        };
        let reached: BTreeMap<&String, BTreeSet<String>> = imports.keys().map(|file| (file, reached(file))).collect();
        let mut circles: Vec<_> = imports
            .keys()
            .map(|file| imports.keys().filter(|other| reached[file].contains(*other) && reached[*other].contains(file)).collect())
            .filter(|circle: &Vec<_>| circle.len() > 2)
            .collect();
        circles.sort();
        circles.dedup();
        findings.extend(circles.iter().map(|circle| format!("{package}/src: import each other in a circle: {circle:?}")));
    }
    report(&findings);
}

/// The parts of the check above.
#[test]
fn import_circles_are_found() {
    let mut found = Vec::new();
    assert_eq!(paths("a::{b, c::{self, d as e}, *};", &[], &mut found), ";");
    let found: Vec<_> = found.iter().map(|path| path.join("::")).collect();
    assert_eq!(found, ["a::b", "a::c::self", "a::c::d", "a::"]);
    let sources = [
        ("a.rs", "use crate::{b::B, Root};\n#[cfg(test)]\nmod tests { use crate::c; }"),
        ("b/mod.rs", "mod d;\nuse d::D; // crate::c"),
        ("b/d.rs", "use super::{B, e::E};\nfn f(x: crate::a::A) {}"),
        ("b/e.rs", ""),
        ("c.rs", "use crate::b::d::D;"),
    ];
    let imports = imports(&sources);
    let of = |file: &str| imports[file].iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    assert_eq!(["a", "b", "b/d", "b/e", "c"].map(of), ["b", "", "a b b/e", "", "b/d"]);
}

/// A source file that no `mod` names is silently not compiled.
#[test]
fn no_source_is_dead() {
    let mut findings = Vec::new();
    let sources = files(".rs");
    for (file, _) in &sources {
        let Some((package, path)) = file.split_once("/src/") else { continue };
        let parts: Vec<_> = path.trim_end_matches(".rs").split('/').collect();
        let name = match parts[..] {
            ["lib" | "main"] | ["bin", ..] => continue,
            [.., folder, "mod"] => folder,
            _ => parts[parts.len() - 1],
        };
        let named = |text: &str| {
            text.lines()
                .any(|line| line.trim().trim_start_matches("pub ").trim_start_matches("pub(crate) ") == format!("mod {name};"))
        };
        if !sources.iter().any(|(other, text)| other.starts_with(&format!("{package}/src/")) && named(text)) {
            findings.push(format!("{file}: no `mod {name};` names it"));
        }
    }
    report(&findings);
}

/// A stable sort allocates when it has more than about a hundred elements. The page daemon did that, and under `run` such memory
/// was never given back: a Lua program outgrew its budget by 48 MiB in two minutes.
#[test]
fn nothing_is_sorted_with_memory_in_the_fault_path() {
    let mut findings = Vec::new();
    for (file, text) in files(".rs") {
        if !["vm", "machine", "swap", "store"].iter().any(|krate| file.starts_with(&format!("crates/{krate}/src/"))) {
            continue;
        }
        for (number, line) in (1..).zip(text.lines()) {
            if [".sort()", ".sort_by(", ".sort_by_key(", ".sort_by_cached_key("].iter().any(|sort| line.contains(sort)) {
                findings.push(format!("{file}:{number}: a stable sort allocates; take `sort_unstable` and a full key"));
            }
        }
    }
    report(&findings);
}

#[test]
fn no_name_of_a_workplace() {
    let places = WORKPLACE.map(|folder| format!("/{folder}/"));
    let mut findings = Vec::new();
    for ending in [".rs", ".md", ".py", ".c", ".toml", "Makefile"] {
        for (file, text) in files(ending) {
            for (number, line) in (1..).zip(text.lines()) {
                for place in &places {
                    let at_start = |at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-}>)".contains(c));
                    if line.match_indices(place).any(|(at, _)| at_start(at)) {
                        findings.push(format!("{file}:{number}: names a place on one machine: {place}"));
                    }
                }
            }
        }
    }
    report(&findings);
}
