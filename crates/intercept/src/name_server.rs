//! Answers an app's questions for names: those of the mesh from the table, all others by another
//! server, which gets the bytes of the question and of which the answer goes back unchanged. The table
//! remembers the addresses that such an answer has.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tollway_proxy::{NameAnswer, NameTable};
use tollway_routing::intercept::Meaning;
use tollway_routing::intercept::dns::{
    Answer, DNS_MESSAGE_BYTES, is_answer_to, read_question, write_answer, write_failure,
};

use crate::resolvers::Resolvers;

/// Questions that other servers have at a time.
const DNS_FORWARDED_LIMIT: usize = 256;
/// Time for the answer of one server, until the next is asked.
const SERVER_WITHIN: Duration = Duration::from_secs(2);
/// Connections over TCP at a time.
const NAME_CONNECTIONS_LIMIT: usize = 64;
/// Time for the next question on a connection.
const QUESTION_WITHIN: Duration = Duration::from_secs(10);
/// Time after which accepting is tried again where it failed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// Bound sockets on loopback.
pub(crate) struct NameServer {
    udp: Vec<std::net::UdpSocket>,
    tcp: Vec<std::net::TcpListener>,
    udp_port: u16,
    tcp_port: u16,
}

impl NameServer {
    /// Takes a port of this thread's network namespace, or free ones for 0. `::1` has the same ones, where the
    /// machine has it and they are free there.
    pub(crate) fn bind(port: u16) -> io::Result<Self> {
        let udp = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, port))?;
        let tcp = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let (udp_port, tcp_port) = (udp.local_addr()?.port(), tcp.local_addr()?.port());
        let mut server = Self { udp: vec![udp], tcp: vec![tcp], udp_port, tcp_port };
        let udp6 = std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, udp_port));
        let tcp6 = std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, tcp_port));
        if let (Ok(udp), Ok(tcp)) = (udp6, tcp6) {
            server.udp.push(udp);
            server.tcp.push(tcp);
        }
        Ok(server)
    }

    pub(crate) fn has_ipv6(&self) -> bool {
        self.udp.len() > 1
    }

    pub(crate) fn udp_port(&self) -> u16 {
        self.udp_port
    }

    pub(crate) fn tcp_port(&self) -> u16 {
        self.tcp_port
    }

    /// Serves until the tasks are dropped.
    pub(crate) fn serve(
        self,
        names: Arc<NameTable>,
        resolvers: Resolvers,
    ) -> io::Result<JoinSet<()>> {
        let shared = Arc::new(Shared {
            names,
            resolvers,
            forwarded: Arc::new(Semaphore::new(DNS_FORWARDED_LIMIT)),
            connections: Arc::new(Semaphore::new(NAME_CONNECTIONS_LIMIT)),
        });
        let mut tasks = JoinSet::new();
        for socket in self.udp {
            socket.set_nonblocking(true)?;
            let socket = Arc::new(UdpSocket::from_std(socket)?);
            tasks.spawn(serve_udp(socket, Arc::clone(&shared)));
        }
        for listener in self.tcp {
            listener.set_nonblocking(true)?;
            tasks.spawn(serve_tcp(TcpListener::from_std(listener)?, Arc::clone(&shared)));
        }
        Ok(tasks)
    }
}

struct Shared {
    names: Arc<NameTable>,
    resolvers: Resolvers,
    forwarded: Arc<Semaphore>,
    connections: Arc<Semaphore>,
}

/// What becomes of a message.
enum Reply {
    /// It is answered here.
    Here(Vec<u8>),
    /// Another server answers it.
    Forward(OwnedSemaphorePermit),
    /// It is none that has an answer.
    Nothing,
}

impl Shared {
    fn reply(&self, message: &[u8]) -> Reply {
        let Some(question) = read_question(message) else { return self.forward(message) };
        let answer = match self.names.ask(&question.name) {
            Meaning::Service(address) => {
                question.wants.map_or(Answer::Nothing, |family| Answer::Address(address, family))
            }
            Meaning::NoService => Answer::NoSuchName,
            Meaning::Other => return self.forward(message),
        };
        self.names.count(match answer {
            Answer::Address(..) | Answer::Nothing => NameAnswer::Service,
            Answer::NoSuchName | Answer::Failed => NameAnswer::NoService,
        });
        Reply::Here(write_answer(message, &question, answer))
    }

    fn forward(&self, message: &[u8]) -> Reply {
        match Arc::clone(&self.forwarded).try_acquire_owned() {
            Ok(permit) => Reply::Forward(permit),
            Err(_) => self.failure(message),
        }
    }

    fn failure(&self, message: &[u8]) -> Reply {
        self.names.count(NameAnswer::Failed);
        write_failure(message).map_or(Reply::Nothing, Reply::Here)
    }

    /// The answer of another server, or that there is none; `None` where the message has no answer.
    async fn ask_others<F>(&self, message: &[u8], ask: impl Fn(SocketAddr) -> F) -> Option<Vec<u8>>
    where
        F: Future<Output = io::Result<Vec<u8>>>,
    {
        for server in self.resolvers.list() {
            match timeout(SERVER_WITHIN, ask(server)).await {
                Ok(Ok(answer)) => {
                    self.names.note_answer(&answer, Instant::now());
                    self.names.count(NameAnswer::Forwarded);
                    return Some(answer);
                }
                Ok(Err(error)) => tracing::debug!(%server, %error, "a name server failed"),
                Err(_) => tracing::debug!(%server, "a name server does not answer"),
            }
        }
        match self.failure(message) {
            Reply::Here(answer) => Some(answer),
            Reply::Forward(_) | Reply::Nothing => None,
        }
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, shared: Arc<Shared>) {
    let mut buffer = vec![0; DNS_MESSAGE_BYTES];
    loop {
        // An error is of an answer that could not be delivered.
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
        let message = &buffer[..length];
        match shared.reply(message) {
            Reply::Nothing => {}
            Reply::Here(answer) => {
                // The app asks again for what it does not get.
                let _ = socket.send_to(&answer, from).await;
            }
            Reply::Forward(permit) => {
                let (socket, shared) = (Arc::clone(&socket), Arc::clone(&shared));
                let message = message.to_vec();
                tokio::spawn(async move {
                    let answer = shared.ask_others(&message, |server| ask_udp(server, &message));
                    if let Some(answer) = answer.await {
                        let _ = socket.send_to(&answer, from).await;
                    }
                    drop(permit);
                });
            }
        }
    }
}

async fn ask_udp(server: SocketAddr, message: &[u8]) -> io::Result<Vec<u8>> {
    let any: SocketAddr = if server.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(any).await?;
    // From here on the kernel drops what comes from elsewhere.
    socket.connect(server).await?;
    socket.send(message).await?;
    let mut answer = vec![0; DNS_MESSAGE_BYTES];
    loop {
        let length = socket.recv(&mut answer).await?;
        if is_answer_to(&answer[..length], message) {
            answer.truncate(length);
            return Ok(answer);
        }
    }
}

async fn serve_tcp(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&shared.connections).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    if let Err(error) = serve_connection(stream, &shared).await {
                        tracing::debug!(%error, "a connection for names ended");
                    }
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
        }
    }
}

async fn serve_connection(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    loop {
        let Ok(read) = timeout(QUESTION_WITHIN, read_message(&mut stream)).await else {
            return Ok(());
        };
        let Some(message) = read? else { return Ok(()) };
        let answer = match shared.reply(&message) {
            Reply::Here(answer) => Some(answer),
            Reply::Nothing => None,
            Reply::Forward(permit) => {
                let answer = shared.ask_others(&message, |server| ask_tcp(server, &message)).await;
                drop(permit);
                answer
            }
        };
        match answer {
            Some(answer) => write_message(&mut stream, &answer).await?,
            None => return Ok(()),
        }
    }
}

async fn ask_tcp(server: SocketAddr, message: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    write_message(&mut stream, message).await?;
    let answer = read_message(&mut stream).await?.filter(|answer| is_answer_to(answer, message));
    answer.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it sent something else"))
}

/// The next message; `None` at the end.
async fn read_message(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 2];
    match stream.read_exact(&mut length).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    };
    let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut message).await?;
    Ok(Some(message))
}

async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend_from_slice(message);
    stream.write_all(&bytes).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A question for an address of IPv4.
    fn question(name: &str) -> Vec<u8> {
        let mut bytes = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            bytes.push(u8::try_from(label.len()).unwrap());
            bytes.extend_from_slice(label.as_bytes());
        }
        bytes.extend_from_slice(&[0, 0, 1, 0, 1]);
        bytes
    }

    /// A server that answers everything with these bytes behind the number of the question, over UDP and
    /// TCP at one port.
    async fn other_server(rest: &'static [u8]) -> SocketAddr {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let udp = UdpSocket::bind(address).await.unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            loop {
                let (_, from) = udp.recv_from(&mut buffer).await.unwrap();
                // First one that is not the answer.
                udp.send_to(&[&[0, 0], rest].concat(), from).await.unwrap();
                udp.send_to(&[&buffer[..2], rest].concat(), from).await.unwrap();
            }
        });
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = tcp.accept().await.unwrap();
                let message = read_message(&mut stream).await.unwrap().unwrap();
                write_message(&mut stream, &[&message[..2], rest].concat()).await.unwrap();
            }
        });
        address
    }

    struct Client {
        socket: UdpSocket,
        tcp_port: u16,
        names: Arc<NameTable>,
        _tasks: JoinSet<()>,
    }

    impl Client {
        async fn of(resolvers: Vec<SocketAddr>) -> Self {
            let server = NameServer::bind(0).unwrap();
            let (udp_port, tcp_port) = (server.udp_port(), server.tcp_port());
            let names = Arc::new(NameTable::new([("postgres", "db.shop")]));
            let tasks = server.serve(Arc::clone(&names), Resolvers::These(resolvers)).unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            socket.connect((Ipv4Addr::LOCALHOST, udp_port)).await.unwrap();
            Self { socket, tcp_port, names, _tasks: tasks }
        }

        async fn ask(&self, message: &[u8]) -> Vec<u8> {
            self.socket.send(message).await.unwrap();
            let mut answer = vec![0; DNS_MESSAGE_BYTES];
            let length = self.socket.recv(&mut answer).await.unwrap();
            answer.truncate(length);
            answer
        }

        async fn ask_over_tcp(&self, message: &[u8]) -> Vec<u8> {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.tcp_port));
            ask_tcp(address, message).await.unwrap()
        }
    }

    const OTHERS_ANSWER: &[u8] = &[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0, 1, 2, 3];

    #[tokio::test]
    async fn names_of_the_mesh_are_answered_here_and_others_elsewhere() {
        let client = Client::of(vec![other_server(OTHERS_ANSWER).await]).await;
        for name in ["stock.mesh", "postgres"] {
            let message = question(name);
            let answer = client.ask(&message).await;
            let [.., a, b, c, d] = answer[..] else { panic!("{answer:?}") };
            let host = client.names.host(Ipv4Addr::new(a, b, c, d)).unwrap();
            let expected = if name == "postgres" { "db.shop.mesh" } else { name };
            assert_eq!(host, expected);
            assert_eq!(client.ask_over_tcp(&message).await, answer);
        }
        assert_eq!(client.ask(&question("a.b.c.d.mesh")).await[3], 0x83);
        let expected = [&[7, 9], OTHERS_ANSWER].concat();
        assert_eq!(client.ask(&question("example.com")).await, expected);
        assert_eq!(client.ask_over_tcp(&question("example.com")).await, expected);
        assert_eq!(client.names.counts(), [4, 1, 2, 0]);
    }

    #[tokio::test]
    async fn a_server_that_is_gone_is_passed_over_and_without_any_the_answer_is_a_failure() {
        let gone = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let client = Client::of(vec![gone, other_server(OTHERS_ANSWER).await]).await;
        let expected = [&[7, 9], OTHERS_ANSWER].concat();
        assert_eq!(client.ask(&question("example.com")).await, expected);
        let client = Client::of(Vec::new()).await;
        assert_eq!(client.ask(&question("example.com")).await[..4], [7, 9, 0x81, 0x82]);
        assert_eq!(client.ask(&question("stock.mesh")).await[..4], [7, 9, 0x81, 0x80]);
        assert_eq!(client.names.counts(), [1, 0, 0, 1]);
    }
}
