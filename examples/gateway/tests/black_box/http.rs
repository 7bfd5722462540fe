//! A blocking HTTP/1.1 client: what curl sends, what curl shows.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// No answer of a gateway takes this long.
const TIMEOUT: Duration = Duration::from_secs(15);

/// One connection, kept alive.
pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    pub(crate) fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(method, path, headers);
        self.receive(method)
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)]) {
        self.send_with(method, path, headers, "");
    }

    /// In one write: a server that refuses a request need not wait for its body,
    /// and closes the connection if it has not come.
    fn send_with(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) {
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: gateway\r\n");
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        self.0.get_mut().write_all((request + "\r\n" + body).as_bytes()).unwrap();
    }

    /// A POST with a body.
    pub(crate) fn post(&mut self, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.send_post(path, headers, body);
        self.receive("POST")
    }

    /// The same, without waiting for the answer.
    pub(crate) fn send_post(&mut self, path: &str, headers: &[(&str, &str)], body: &str) {
        let length = body.len().to_string();
        let headers =
            [headers, &[("content-type", "application/json"), ("content-length", &length)]].concat();
        self.send_with("POST", path, &headers, body);
    }

    pub(crate) fn receive(&mut self, method: &str) -> Answer {
        let status_line = self.line();
        let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let mut answer = Answer {
            status: status.unwrap_or_else(|| panic!("no status line: {status_line:?}")),
            headers: Vec::new(),
            body: String::new(),
        };
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(": ") else { break };
            answer.headers.push((name.to_owned(), value.to_owned()));
        }
        if answer.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk() {
                answer.body += &chunk;
            }
        } else if method != "HEAD"
            && let Some(length) = answer.header("content-length")
        {
            let mut body = vec![0; length.parse().unwrap()];
            self.0.read_exact(&mut body).unwrap();
            answer.body = String::from_utf8(body).unwrap();
        }
        answer
    }

    /// The next chunk of a body that streams, `None` after the last one.
    pub(crate) fn chunk(&mut self) -> Option<String> {
        let length = usize::from_str_radix(&self.line(), 16).unwrap();
        let mut chunk = vec![0; length];
        self.0.read_exact(&mut chunk).unwrap();
        self.line();
        (length > 0).then(|| String::from_utf8(chunk).unwrap())
    }

    /// The head of an answer whose body streams.
    pub(crate) fn head(&mut self) -> u16 {
        let status_line = self.line();
        while !self.line().is_empty() {}
        status_line.split(' ').nth(1).unwrap().parse().unwrap()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    /// The only line of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.headers.iter().filter(|(other, _)| other == name).map(|(_, value)| &**value);
        let line = lines.next();
        assert_eq!(lines.next(), None, "{name} stands twice");
        line
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        let value = self.header(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        value.parse().unwrap_or_else(|_| panic!("{name}: {value}"))
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}
