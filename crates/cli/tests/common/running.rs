//! A program that runs alongside the test, which asks it about its devices meanwhile.

use crate::common::{PATIENCE, overspill, patiently, unique};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A program under Overspill that goes on until it is told to end. Killed when dropped.
pub struct Running {
    pub child: Child,
    pub name: String,
    pub dir: PathBuf,
    pub environment: Vec<(String, String)>,
}

impl Running {
    /// Starts `program arguments`, which ends when its last argument, the file `stop` of `dir`, exists. There are no devices but
    /// those in `options`.
    pub fn start(
        dir: &Path,
        test: &str,
        options: &[&str],
        program: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Running {
        let name = unique(test);
        let mut command = Command::new(overspill());
        command
            .args(["run", "--no-compress", "--name", &name])
            .args(options)
            .arg("--")
            .arg(program)
            .args(arguments)
            .arg(dir.join("stop"));
        command.env_remove("OVERSPILL_INJECT").envs(environment.iter().copied());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("overspill runs");
        let environment = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let running = Running { child, name, dir: dir.into(), environment };
        let start = Instant::now();
        while running.swaps().is_empty() {
            assert!(start.elapsed() < PATIENCE, "no control socket comes up");
            std::thread::sleep(Duration::from_millis(20));
        }
        running
    }

    /// The devices, as JSON; none if the program does not answer.
    pub fn swaps(&self) -> Vec<Value> {
        let output = self.ask("swaps", &["--json"]);
        String::from_utf8_lossy(&output.stdout).lines().map(|l| serde_json::from_str(l).expect("JSON")).collect()
    }

    /// `overspill VERB NAME ARGUMENTS`, killed when it hangs.
    pub fn ask(&self, verb: &str, arguments: &[&str]) -> Output {
        let mut command = patiently(overspill());
        command.args([verb, &self.name]).args(arguments);
        command.envs(self.environment.iter().cloned());
        command.output().expect("overspill runs")
    }

    pub fn wait_until(&self, what: &str, mut is: impl FnMut(&Running) -> bool) {
        let start = Instant::now();
        while !is(self) {
            assert!(start.elapsed() < PATIENCE, "{what} does not come to be: {:?}", self.swaps());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Makes it end, and checks that everything was right.
    pub fn end(mut self) {
        fs::write(self.dir.join("stop"), b"").expect("write");
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("wait") {
                Some(status) => break status,
                None if start.elapsed() > PATIENCE => panic!("it does not end: {:?}", self.swaps()),
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        let (mut out, mut err) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut out).expect("read");
        self.child.stderr.take().unwrap().read_to_string(&mut err).expect("read");
        assert_eq!((status.code(), out.as_str()), (Some(0), "all bytes right\n"), "{err}");
        fs::remove_file(self.dir.join("stop")).expect("cleanup");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
