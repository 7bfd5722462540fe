//! A private CA, made by the `openssl` command line where the test runs: a
//! certificate in the repository would end one day.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A CA. Its files are removed when it is dropped.
pub(crate) struct Ca {
    dir: PathBuf,
}

impl Ca {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tower-ratelimit-ca-{}-{count}", std::process::id());
        let ca = Self { dir: std::env::temp_dir().join(name) };
        fs::create_dir(&ca.dir).unwrap();
        ca.request("ca");
        fs::write(ca.path("ca.ext"), "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\n")
            .unwrap();
        ca.openssl(&["x509", "-req", "-in", "ca.csr", "-signkey", "ca.key", "-extfile", "ca.ext"], "ca.crt");
        ca
    }

    /// A certificate for hosts (`IP:127.0.0.1,DNS:localhost`) and its key: the
    /// paths of both.
    pub(crate) fn issue(&self, hosts: &str) -> (String, String) {
        self.request("server");
        fs::write(self.path("server.ext"), format!("subjectAltName={hosts}\n")).unwrap();
        let by = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "server.ext"];
        self.openssl(&[&["x509", "-req", "-in", "server.csr"][..], &by].concat(), "server.crt");
        (self.path("server.crt"), self.path("server.key"))
    }

    /// In PEM.
    pub(crate) fn certificate(&self) -> Vec<u8> {
        fs::read(self.certificate_path()).unwrap()
    }

    pub(crate) fn certificate_path(&self) -> String {
        self.path("ca.crt")
    }

    /// In PEM.
    pub(crate) fn key(&self) -> Vec<u8> {
        fs::read(self.path("ca.key")).unwrap()
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }

    /// A key and a request for a certificate in this name.
    fn request(&self, name: &str) {
        let (key, request) = (format!("{name}.key"), format!("{name}.csr"));
        fs::write(self.path("req.cnf"), "[req]\ndistinguished_name=name\nprompt=no\n[name]\nCN=test\n")
            .unwrap();
        self.openssl(&["ecparam", "-name", "prime256v1", "-genkey", "-noout"], &key);
        let subject = format!("/CN=tower-ratelimit {name}");
        self.openssl(&["req", "-new", "-config", "req.cnf", "-key", &key, "-subj", &subject], &request);
    }

    fn openssl(&self, args: &[&str], out: &str) {
        let run = Command::new("openssl").args(args).args(["-out", out]).current_dir(&self.dir).output();
        let run = run.unwrap_or_else(|error| panic!("this test needs the openssl command line: {error}"));
        assert!(run.status.success(), "openssl {args:?}: {}", String::from_utf8_lossy(&run.stderr));
    }
}

impl Drop for Ca {
    fn drop(&mut self) {
        // Too late to complain, and the system clears its temporary files.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
