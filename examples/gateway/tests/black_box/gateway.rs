//! One gateway process: an environment of its own, a free port, gone when
//! dropped.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::http::{Answer, Client};

/// What a gateway does not do by then, it never will.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

pub(crate) struct Gateway {
    child: Child,
    first_line: String,
    logs: Arc<Mutex<String>>,
}

impl Gateway {
    /// Starts one with these variables and no others, and waits until it
    /// listens.
    pub(crate) fn start(variables: &[(&str, &str)]) -> Self {
        let mut child = spawn(variables);
        let logs = Arc::new(Mutex::new(String::new()));
        let (stderr, kept) = (child.stderr.take().unwrap(), logs.clone());
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                *kept.lock().unwrap() += &(line + "\n");
            }
        });
        let mut first_line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first_line).unwrap();
        let gateway = Self { child, first_line, logs };
        assert!(gateway.first_line.starts_with("listening on http://"), "{}", gateway.logs());
        gateway
    }

    /// Starts one that has to stop by itself, and returns what it said.
    pub(crate) fn start_in_vain(variables: &[(&str, &str)]) -> String {
        let mut child = spawn(variables);
        let status = wait(&mut child);
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(!status.success(), "{variables:?} was taken: {said}");
        said
    }

    /// Runs `gateway --check FILE`: whether it is content, and what it said.
    pub(crate) fn check(variables: &[(&str, &str)], file: &str) -> (bool, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_gateway"))
            .env_clear()
            .envs(variables.iter().copied())
            .args(["--check", file])
            .output()
            .unwrap();
        let said = if output.status.success() { output.stdout } else { output.stderr };
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    pub(crate) fn first_line(&self) -> &str {
        &self.first_line
    }

    /// Where it listens, by IPv4.
    pub(crate) fn addr(&self) -> SocketAddr {
        let (_, port) = self.first_line.trim_end().rsplit_once(':').unwrap();
        SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse().unwrap()))
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.addr())
    }

    /// One request on a connection of its own.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.get_with(path, &[])
    }

    pub(crate) fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.connect().request("GET", path, headers)
    }

    /// What has been logged so far.
    pub(crate) fn logs(&self) -> String {
        self.logs.lock().unwrap().clone()
    }

    /// How many lines of log hold `text`.
    pub(crate) fn logged(&self, text: &str) -> usize {
        self.logs().lines().filter(|line| line.contains(text)).count()
    }

    /// As `kill -s` does.
    pub(crate) fn signal(&self, name: &str) {
        let script = format!("kill -s {name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Looks again and again until it is so.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        thread::sleep(PAUSE);
    }
}

fn spawn(variables: &[(&str, &str)]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_gateway"))
        .env_clear()
        .env("LISTEN", "127.0.0.1:0")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn wait(child: &mut Child) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if started.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("the gateway did not end within {PATIENCE:?}");
        }
        thread::sleep(PAUSE);
    }
}
