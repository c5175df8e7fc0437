//! The installed library as C and C++ programs use it: built by the system's compilers, linked to both libraries, run with both
//! deliveries and under sanitizers.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// A time limit that only a hang reaches.
const PATIENCE: Duration = Duration::from_secs(300);

const DELIVERIES: [&str; 2] = ["in-thread", "threads"];

/// The cases of `calls.c`.
const CASES: [&str; 9] = ["calls", "file", "errors", "limits", "threads", "file-threads", "cancel", "fork", "lost"];

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Whether all these programs are there; prints which is not.
fn have(programs: &[&str]) -> bool {
    let missing = |program: &&&str| !Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    let Some(missing) = programs.iter().find(missing) else { return true };
    assert!(std::env::var_os("CI").is_none(), "{missing} is missing");
    println!("not run: {missing} is missing");
    false
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = [&output.stdout[..], &output.stderr[..]].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success(), "{command:?}: {}\n{}{}", output.status, text[0], text[1]);
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Where the library is installed for these tests, once for all of them. `None` without a C compiler.
fn installed() -> Option<&'static Path> {
    static PLACE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let place = || {
        if !have(&["cc", "ld", "objcopy"]) {
            return None;
        }
        // Cargo has built the archive next to this test. Others there have other features; the newest has just been checked.
        let deps = std::env::current_exe().expect("a name").parent().expect("a folder").to_owned();
        let is_archive = |name: &OsStr| name.to_string_lossy().starts_with("liboverspill_capi-");
        let archives = std::fs::read_dir(deps).expect("a folder").map(|entry| entry.expect("an entry").path());
        let archives = archives.filter(|path| path.extension() == Some("a".as_ref()) && path.file_name().is_some_and(is_archive));
        let newest = archives.max_by_key(|path| path.metadata().expect("a file").modified().expect("a time")).expect("an archive");
        let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
        for old in std::fs::read_dir(tmp).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            let process = old.file_name().and_then(OsStr::to_str).and_then(|name| name.strip_prefix("c-"));
            if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
                let _ = std::fs::remove_dir_all(old); // of a run that has ended
            }
        }
        let place = tmp.join(format!("c-{}", std::process::id()));
        run(Command::new(source("install.sh")).arg(newest).arg(&place));
        Some(place)
    };
    PLACE.get_or_init(place).as_deref()
}

/// A directory of a test's own, which is removed if the test passes. Then only `keeps` files may be in it.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("overspill-c-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let place = std::env::temp_dir().join(name);
        std::fs::create_dir(&place).expect("temp dir");
        Place(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::fs::remove_dir(&self.0).expect("a program left nothing behind");
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Link {
    Shared,
    /// The archive, and the system's libraries shared.
    Archive,
}

/// What pkg-config says, which knows only the place where the library is installed.
fn flags(what: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", installed().expect("installed").join("lib/pkgconfig")).args(what).arg("overspill");
    text(&run(&mut command).stdout).split_whitespace().map(str::to_owned).collect()
}

/// Compiles a program of this crate with warnings as errors. `None`, with a message, if something is missing.
fn compile(file: &str, link: Link, options: &[&str]) -> Option<PathBuf> {
    let (compiler, standard) = if file.ends_with(".cpp") { ("c++", "-std=c++17") } else { ("cc", "-std=c11") };
    if !have(&[compiler, "pkg-config"]) {
        return None;
    }
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let program = installed()?.join(format!("program-{}", COUNT.fetch_add(1, Relaxed)));
    let mut command = Command::new(compiler);
    command.args([standard, "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]).args(options);
    command.arg("-o").arg(&program).arg(source(file)).args(flags(&["--cflags"]));
    match link {
        Link::Shared => command.args(flags(&["--libs"])).arg(format!("-Wl,-rpath,{}/lib", installed()?.display())),
        // -l takes a shared library first, so the archive is named by its file
        Link::Archive => command.args(flags(&["--libs", "--static"]).into_iter().map(|flag| match &flag[..] {
            "-loverspill" => "-l:liboverspill.a".to_owned(),
            _ => flag,
        })),
    };
    run(command.arg("-Wl,--gc-sections"));
    Some(program)
}

/// Runs a program that ends with "all right", or says why it cannot run here.
fn passes(program: &Path, arguments: &[&str]) {
    let place = Place::new();
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", &PATIENCE.as_secs().to_string()]).arg(program).args(arguments).arg(&place.0);
    command.env("TMPDIR", &place.0).env_remove("LD_LIBRARY_PATH");
    let output = run(&mut command);
    let told = text(&output.stdout);
    if told.starts_with("CANNOT") {
        assert!(std::env::var_os("CI").is_none(), "{told}");
        println!("{arguments:?} not run: {told}");
    } else {
        assert!(told.ends_with("all right\n"), "{command:?}: {told}{}", String::from_utf8_lossy(&output.stderr));
    }
}

fn all_calls(link: Link, options: &[&str]) {
    let Some(program) = compile("tests/programs/calls.c", link, options) else { return };
    for delivery in DELIVERIES {
        for case in CASES {
            passes(&program, &[case, delivery]);
        }
    }
}

#[test]
fn a_c_program_makes_all_calls() {
    all_calls(Link::Shared, &[]);
}

#[test]
fn a_c_program_makes_all_calls_of_the_archive() {
    all_calls(Link::Archive, &[]);
}

/// Whether the compiler has that sanitizer; prints it if not.
fn has_sanitizer(name: &str) -> bool {
    let Some(place) = installed() else { return false };
    let program = place.join(format!("with-{name}"));
    let code = program.with_extension("c");
    std::fs::write(&code, "int main(void) { return 0; }\n").expect("a file");
    let built = Command::new("cc").arg(format!("-fsanitize={name}")).arg("-o").arg(&program).arg(&code).output().expect("cc");
    let there = built.status.success();
    assert!(there || std::env::var_os("CI").is_none(), "cc has no {name} sanitizer");
    if !there {
        println!("not run: cc has no {name} sanitizer");
    }
    there
}

/// The sanitizer's handlers are there before the pager's, and its leak check must neither find a leak nor look into regions.
#[test]
fn address_and_undefined_behaviour_sanitizers_find_nothing() {
    let options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"];
    if has_sanitizer("address,undefined") {
        all_calls(Link::Shared, &options);
        if let Some(program) = compile("tests/programs/classes.cpp", Link::Archive, &options) {
            DELIVERIES.iter().for_each(|delivery| passes(&program, &[delivery]));
        }
    }
}

#[test]
fn a_cpp_program_uses_all_classes() {
    for link in [Link::Shared, Link::Archive] {
        for standard in ["-std=c++17", "-std=c++20"] {
            let Some(program) = compile("tests/programs/classes.cpp", link, &[standard]) else { return };
            DELIVERIES.iter().for_each(|delivery| passes(&program, &[delivery]));
        }
    }
}

/// Builds an example, optimised and with a sanitizer, runs it, and looks at its last line.
fn example(file: &str, arguments: &[&str], last: &str) {
    let mut programs = vec![compile(file, Link::Shared, &["-O2"])];
    if has_sanitizer("address") {
        programs.push(compile(file, Link::Archive, &["-fsanitize=address"]));
    }
    for program in programs.into_iter().flatten() {
        let told = text(&run(Command::new(program).args(arguments)).stdout);
        assert!(told.ends_with(last), "{told}");
        print!("{told}");
    }
}

#[test]
fn the_example_joins_tables_of_four_times_its_memory() {
    example("examples/hash_join.c", &["64", "16"], "the result is right\n");
}

#[test]
fn the_example_has_an_index_of_eight_times_its_memory_in_a_file() {
    let place = Place::new();
    let index = place.0.join("index");
    example("examples/file_index.c", &[index.to_str().expect("UTF-8"), "64", "8"], "the file is right\n");
    std::fs::remove_file(index).expect("the example has made it");
}

/// The names of a symbol table that are defined and global.
fn symbols(options: &[&str], file: &Path) -> BTreeSet<String> {
    let table = text(&run(Command::new("readelf").args(options).arg("-W").arg(file)).stdout);
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let global = rows.filter(|row| row.len() == 8 && row[4] != "LOCAL" && !["UND", "ABS", "Ndx"].contains(&row[6]));
    global.map(|row| row[7].to_owned()).collect()
}

/// The functions that a text declares: names that begin with `overspill_`, before `after`.
fn names(text: &str, after: char) -> BTreeSet<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = BTreeSet::new();
    for line in
        text.lines().map(|line| line.split("/*").next().unwrap_or("")).filter(|line| !line.starts_with("   ") || after == ';')
    {
        for (at, _) in line.match_indices("overspill_") {
            let name: &str = line[at..].split(|c| !is_word(c)).next().unwrap_or("");
            if line[at + name.len()..].starts_with(after) && !line[..at].ends_with(is_word) {
                found.insert(name.to_owned());
            }
        }
    }
    found
}

/// The header, the list of versions and both libraries have the same functions, and the libraries define nothing else.
#[test]
fn the_libraries_export_what_the_header_declares() {
    let Some(place) = installed() else { return };
    let read = |name: &str| std::fs::read_to_string(source(name)).expect("a file");
    let declared = names(&read("include/overspill.h"), '(');
    assert!(declared.len() > 50, "{declared:?}");
    assert_eq!(declared, names(&read("liboverspill.map"), ';'), "the list of versions");
    let versioned: BTreeSet<String> = declared.iter().map(|name| format!("{name}@@OVERSPILL_0.1")).collect();
    assert_eq!(symbols(&["--dyn-syms"], &place.join("lib/liboverspill.so")), versioned, "the shared library");
    assert_eq!(symbols(&["--syms"], &place.join("lib/liboverspill.a")), declared, "the archive");
    let dynamic = text(&run(Command::new("readelf").arg("-dW").arg(place.join("lib/liboverspill.so"))).stdout);
    assert!(dynamic.contains("soname: [liboverspill.so.0]") && dynamic.contains("NODELETE"), "{dynamic}");
}

/// The numbers of the header are those of the Rust library.
#[test]
fn the_header_has_the_numbers_of_the_library() {
    let header = std::fs::read_to_string(source("include/overspill.h")).expect("a file");
    let defined = |name: &str| {
        let line = header.lines().find_map(|line| line.strip_prefix(&format!("#define {name} "))).expect("it is defined");
        line.trim_matches('"').to_owned()
    };
    assert_eq!(defined("OVERSPILL_VERSION"), env!("CARGO_PKG_VERSION"));
    assert_eq!(defined("OVERSPILL_PAGE_SIZE"), overspill::PAGE_SIZE.to_string());
    assert_eq!(defined("OVERSPILL_MEMORY_BYTES_MIN"), overspill::MEMORY_BYTES_MIN.to_string());
    let mut codes = 0;
    for line in header.lines().filter(|line| line.starts_with("    OVERSPILL_OK") || line.starts_with("    OVERSPILL_E_")) {
        let (name, rest) = line.trim().split_once(" = ").expect("a code has a number");
        let number = rest.split(|c: char| !c.is_ascii_digit()).next().expect("a number").parse().expect("a number");
        let known = overspill_capi::overspill_code_name(number);
        // SAFETY: NULL, or a text that stays.
        assert!(!known.is_null() && unsafe { std::ffi::CStr::from_ptr(known) }.to_str() == Ok(name), "{name} is {number}");
        codes += 1;
    }
    let known = (-1..1000).filter(|code| !overspill_capi::overspill_code_name(*code).is_null()).count();
    assert_eq!(codes, known, "the header has all codes");
}

/// Everything that the header declares can be used without another header before it, in C and in C++.
#[test]
fn the_headers_stand_alone() {
    for (compiler, language, header, standards) in [
        ("cc", "c", "overspill.h", &["c99", "c11", "c17"][..]),
        ("c++", "c++", "overspill.h", &["c++11"]),
        ("c++", "c++", "overspill.hpp", &["c++17", "c++20"]),
    ] {
        for standard in standards.iter().filter(|_| have(&[compiler])) {
            let mut command = Command::new(compiler);
            command.args(["-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-x", language]);
            run(command.arg(format!("-std={standard}")).arg("-include").arg(source("include").join(header)).arg("/dev/null"));
        }
    }
}
