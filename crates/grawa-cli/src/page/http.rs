//! The part of HTTP/1.1 that a read-only page needs: two paths, no bodies, no state, one response for each connection.
//!
//! Clients are bounded in bytes, in time and in number, so that the page never slows the run. A request for the host name of another
//! site (DNS rebinding) is refused: that site's pages must not read this one.

use httparse::Status;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest request.
const LONGEST: usize = 8 << 10;
/// How long a request may take to arrive, and a response to be sent.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most open connections: beyond it the oldest is closed.
const CONNECTIONS: usize = 16;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Page,
    Status,
    /// The request names a host that is not this one.
    OtherHost,
    /// Anything else: the status code and text of the response.
    Wrong(u16, &'static str),
}

/// What the bytes received so far ask for; `None` while they are too few. The page listens at `name`.
pub(super) fn asked(bytes: &[u8], name: &str) -> Option<Asked> {
    const BAD: Asked = Asked::Wrong(400, "Bad Request");
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(Status::Complete(length)) if length <= LONGEST => {}
        Ok(Status::Partial) if bytes.len() <= LONGEST => return None,
        Ok(_) | Err(httparse::Error::TooManyHeaders) => {
            return Some(Asked::Wrong(431, "Request Header Fields Too Large"));
        }
        Err(_) => return Some(BAD),
    }
    let mut hosts = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case("host"));
    match (hosts.next(), hosts.next(), request.version) {
        (None, _, Some(0)) => {}
        (Some(host), None, _) if is_ours(host.value, name) => {}
        (Some(_), None, _) => return Some(Asked::OtherHost),
        _ => return Some(BAD),
    }
    // The page has no parameters.
    let path = request.path.and_then(|target| target.split('?').next());
    Some(match (request.method, path) {
        (Some("GET"), Some("/")) => Asked::Page,
        (Some("GET"), Some("/status.json")) => Asked::Status,
        (Some("GET"), _) => Asked::Wrong(404, "Not Found"),
        _ => Asked::Wrong(405, "Method Not Allowed"),
    })
}

/// Whether a host, with or without a port, is one of this page's: an address, which nobody can lead elsewhere, `localhost`, or the host
/// in the name it was given to listen at.
fn is_ours(host: &[u8], name: &str) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let host = without_port(host);
    let is_local =
        host.eq_ignore_ascii_case("localhost") || host.to_ascii_lowercase().ends_with(".localhost");
    is_local || host.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case(without_port(name))
}

fn without_port(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split_once(':').map_or(host, |(host, _)| host),
    }
}

/// Answers requests until the process ends. The page listens at `name`.
pub(super) fn serve(
    listener: &TcpListener,
    name: &str,
    page: &'static str,
    status: impl Fn() -> String + Send + Sync + 'static,
) {
    let (status, name) = (Arc::new(status), Arc::<str>::from(name));
    // The last connections, the oldest first; most of them are answered and closed.
    let mut open: VecDeque<TcpStream> = VecDeque::new();
    for socket in listener.incoming() {
        let Ok((socket, other)) = socket.and_then(|socket| Ok((socket.try_clone()?, socket))) else {
            // Too many open files, most likely: it passes, and must not spin.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        open.push_back(other);
        if open.len() > CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            // Its thread finds the end.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        let (status, name) = (Arc::clone(&status), Arc::clone(&name));
        let answer = move || {
            // A client that hangs up needs no answer.
            let _ = answer(&socket, &name, page, &*status);
            let _ = socket.shutdown(Shutdown::Both);
        };
        if std::thread::Builder::new().name("grawa-page".into()).spawn(answer).is_err() {
            open.pop_back();
        }
    }
}

fn answer(
    mut socket: &TcpStream,
    name: &str,
    page: &str,
    status: &dyn Fn() -> String,
) -> std::io::Result<()> {
    let began = Instant::now();
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut bytes = Vec::new();
    let asked = loop {
        if let Some(asked) = asked(&bytes, name) {
            break asked;
        }
        let left = PATIENCE.saturating_sub(began.elapsed());
        if left.is_zero() {
            break Asked::Wrong(408, "Request Timeout");
        }
        socket.set_read_timeout(Some(left))?;
        let mut some = [0; 1024];
        match socket.read(&mut some)? {
            0 => return Ok(()),
            n => bytes.extend_from_slice(&some[..n]),
        }
    };
    let (code, words, kind, body) = match asked {
        Asked::Page => (200, "OK", "text/html; charset=utf-8", page.to_owned()),
        Asked::Status => (200, "OK", "application/json", status()),
        Asked::OtherHost => {
            let help =
                "Open this page by an address, as localhost, or by the host that was given to --page.\n";
            (421, "Misdirected Request", "text/plain", help.to_owned())
        }
        Asked::Wrong(code, words) => (code, words, "text/plain", format!("{words}\n")),
    };
    let head = format!(
        "HTTP/1.1 {code} {words}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         Connection: close\r\nX-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src 'none'; \
         script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes())?;
    socket.write_all(body.as_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const NAME: &str = "gpu3.local:8080";

    /// Pages of others cannot read this one by a name that they make lead here.
    #[test]
    fn other_hosts_are_refused() {
        let ours = [
            "localhost",
            "LocalHost:7",
            "run.localhost:7",
            "127.0.0.1:7",
            "[::1]:7",
            "192.0.2.7",
            "GPU3.local:1",
        ];
        let others = [
            "evil.example",
            "evil.example:80",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "notlocalhost",
            "",
            "[evil]",
            "gpu3",
        ];
        for (hosts, expected) in [(&ours[..], Asked::Page), (&others[..], Asked::OtherHost)] {
            for host in hosts {
                let request = format!("GET / HTTP/1.1\r\nAccept: */*\r\nHOST: {host}\r\n\r\n");
                assert_eq!(asked(request.as_bytes(), NAME), Some(expected), "{host}");
            }
        }
    }

    #[test]
    fn two_addresses_are_known() {
        for (bytes, expected) in [
            ("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", Some(Asked::Page)),
            ("GET /?theme=dark HTTP/1.0\r\n\r\n", Some(Asked::Page)),
            ("GET /status.json HTTP/1.1\r\nHost:127.0.0.1:80\r\n\r\nmore", Some(Asked::Status)),
            ("GET /../etc/passwd HTTP/1.0\r\n\r\n", Some(Asked::Wrong(404, "Not Found"))),
            ("POST / HTTP/1.0\r\n\r\n", Some(Asked::Wrong(405, "Method Not Allowed"))),
            ("GET / HTTP/1.1\r\n\r\n", Some(Asked::Wrong(400, "Bad Request"))),
            (
                "GET / HTTP/1.1\r\nHost: localhost\r\nhost: evil.example\r\n\r\n",
                Some(Asked::Wrong(400, "Bad Request")),
            ),
            ("GET /\r\n\r\n", Some(Asked::Wrong(400, "Bad Request"))),
            ("GET / HTTP/1.1 twice\r\n\r\n", Some(Asked::Wrong(400, "Bad Request"))),
            ("\r\n\r\n", None),
            ("GET / HTTP/1.1\r\nHost: x\r\n", None),
            ("", None),
        ] {
            assert_eq!(asked(bytes.as_bytes(), NAME), expected, "{bytes:?}");
        }
        let long = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(LONGEST));
        assert_eq!(asked(long.as_bytes(), NAME), Some(Asked::Wrong(431, "Request Header Fields Too Large")));
    }

    proptest! {
        /// Any bytes are a request, a wrong one, or a part of one; more than the limit always have an answer.
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..400), tail in 0usize..2) {
            let mut bytes = bytes;
            let before = asked(&bytes, NAME);
            bytes.extend(vec![b'a'; tail * LONGEST]);
            if let Some(before) = before { prop_assert_eq!(asked(&bytes, NAME), Some(before)); }
            if bytes.len() > LONGEST { prop_assert!(asked(&bytes, NAME).is_some()); }
        }

        #[test]
        fn near_requests_are_answered(method in "[A-Z]{0,5}", path in "/?[a-z./?]{0,12}", version in "HTTP/1.[01]|HTTP/2|", end in "(\r\n){0,3}") {
            let _ = asked(format!("{method} {path} {version}{end}").as_bytes(), NAME);
        }
    }

    #[test]
    fn silent_and_wrong_clients_delay_nobody() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(&listener, "127.0.0.1:0", "<p>page</p>", || "{}".into()));
        let mut silent = Vec::new();
        for _ in 0..10 * CONNECTIONS {
            silent.push(TcpStream::connect(address).unwrap());
        }
        let ask = |request: &[u8]| {
            let mut socket = TcpStream::connect(address).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            socket.write_all(request).unwrap();
            let mut answer = String::new();
            socket.read_to_string(&mut answer).unwrap();
            answer
        };
        let began = Instant::now();
        let found = ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(
            found.starts_with("HTTP/1.1 200 OK\r\n") && found.ends_with("\r\n\r\n<p>page</p>"),
            "{found}"
        );
        assert!(ask(b"GET /status.json HTTP/1.0\r\n\r\n").ends_with("\r\n\r\n{}"));
        let other = ask(b"GET /status.json HTTP/1.1\r\nHost: evil.example\r\n\r\n");
        assert!(other.starts_with("HTTP/1.1 421 ") && other.contains("--page"), "{other}");
        assert!(ask(b"\x16\x03\x01\x02\x00\r\n\r\n").starts_with("HTTP/1.1 400 "));
        assert!(began.elapsed() < PATIENCE, "silent clients delayed the answers");
        // Silent clients are disconnected after a while.
        let mut rest = String::new();
        silent[0].set_read_timeout(Some(3 * PATIENCE)).unwrap();
        let _ = silent[0].read_to_string(&mut rest);
        assert!(began.elapsed() < 2 * PATIENCE);
    }
}
