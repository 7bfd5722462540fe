//! A blocking RESP2 client for assertions, so that a test does not check the
//! crate with the client that the crate itself uses.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// No command of a test takes this long: a longer wait is a hung server.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What Redis answered.
#[derive(Clone, PartialEq, Eq)]
pub enum Reply {
    /// `+OK` and the like.
    Simple(String),
    /// `-ERR ...`, without the dash.
    Error(String),
    Int(i64),
    /// A string, or nil.
    Bulk(Option<Vec<u8>>),
    /// A list; a nil list is an empty one.
    Array(Vec<Self>),
}

impl Reply {
    /// The text of a string, `None` for nil. Panics on any other reply.
    pub fn text(self) -> Option<String> {
        match self {
            Self::Simple(text) => Some(text),
            Self::Bulk(bytes) => bytes.map(|bytes| String::from_utf8(bytes).expect("a reply in UTF-8")),
            other => panic!("expected a string, Redis answered {other:?}"),
        }
    }

    /// The integer. Panics on any other reply.
    pub fn int(self) -> i64 {
        match self {
            Self::Int(value) => value,
            other => panic!("expected an integer, Redis answered {other:?}"),
        }
    }

    /// The elements. Panics on any other reply.
    pub fn array(self) -> Vec<Self> {
        match self {
            Self::Array(items) => items,
            other => panic!("expected an array, Redis answered {other:?}"),
        }
    }
}

/// Bytes are shown as text: a failed assertion is read by a person.
impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simple(text) => write!(f, "Simple({text:?})"),
            Self::Error(text) => write!(f, "Error({text:?})"),
            Self::Int(value) => write!(f, "Int({value})"),
            Self::Bulk(None) => f.write_str("Nil"),
            Self::Bulk(Some(bytes)) => write!(f, "Bulk({:?})", String::from_utf8_lossy(bytes)),
            Self::Array(items) => f.debug_list().entries(items).finish(),
        }
    }
}

/// One connection. Commands and replies take turns on it.
pub struct RespClient {
    stream: BufReader<TcpStream>,
}

impl RespClient {
    /// Connects, within five seconds.
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends one command and reads its reply. An error reply is an `Ok`.
    pub fn command<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            let arg = arg.as_ref();
            write!(request, "${}\r\n", arg.len())?;
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request)?;
        self.reply()
    }

    fn reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end_matches(['\r', '\n']);
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| malformed(line))?;
        match kind {
            "+" => Ok(Reply::Simple(rest.to_owned())),
            "-" => Ok(Reply::Error(rest.to_owned())),
            ":" => Ok(Reply::Int(number(rest)?)),
            "$" => self.bulk(number(rest)?).map(Reply::Bulk),
            "*" => (0..number(rest)?).map(|_| self.reply()).collect::<io::Result<_>>().map(Reply::Array),
            _ => Err(malformed(line)),
        }
    }

    /// The bytes of a string of which the length has been read; -1 is nil.
    fn bulk(&mut self, len: i64) -> io::Result<Option<Vec<u8>>> {
        let Ok(len) = usize::try_from(len) else {
            return Ok(None);
        };
        let mut bytes = vec![0; len + "\r\n".len()];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(len);
        Ok(Some(bytes))
    }
}

fn number(text: &str) -> io::Result<i64> {
    text.parse().map_err(|_| malformed(text))
}

fn malformed(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not RESP2: {line:?}"))
}
