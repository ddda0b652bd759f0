//! SRV records (RFC 2782): which hosts serve a name, in which order. The system's own look-ups do not
//! give them, so its name servers are asked here; messages are read and written by `domain`.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use domain::base::iana::Rcode;
use domain::base::{Message, MessageBuilder, Name, Rtype, ToName as _};
use domain::rdata::Srv;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::race::{ADDRESSES_LIMIT, race};

const RESOLVERS: &str = "/etc/resolv.conf";
const PORT: u16 = 53;
/// As C libraries have it, also where the file has none.
const SERVERS_MOST: usize = 3;
const USUAL_SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), PORT);
/// Time for an answer, over UDP and over TCP; over UDP the question is then sent once more.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How often a question is sent over UDP.
const TRIES: usize = 2;
/// Bytes of an answer over UDP, which the question states.
const DATAGRAM_BYTES: u16 = 1_232;

type Question = Message<Vec<u8>>;

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Record {
    priority: u16,
    weight: u16,
    port: u16,
    host: String,
}

/// Whether a text is the name of a service over TCP, `_SERVICE._tcp.DOMAIN`.
pub(crate) fn is_service(text: &str) -> bool {
    let mut labels = text.splitn(3, '.');
    let is_service = labels.next().is_some_and(|label| label.len() > 1 && label.starts_with('_'));
    let is_tcp = labels.next().is_some_and(|label| label.eq_ignore_ascii_case("_tcp"));
    let has_domain = labels.next().is_some_and(|domain| !domain.is_empty());
    is_service && is_tcp && has_domain && Name::vec_from_str(text).is_ok()
}

/// The hosts and ports of a name, in the order in which to try them; at most [`ADDRESSES_LIMIT`].
///
/// # Errors
/// There is none, or no server answers.
pub(crate) async fn lookup(name: &str) -> io::Result<Vec<(String, u16)>> {
    let text = std::fs::read_to_string(RESOLVERS).unwrap_or_default();
    let mut servers = name_servers(&text);
    if servers.is_empty() {
        servers.push(USUAL_SERVER);
    }
    let records = ask_one_of(name, &servers).await?;
    let none = |reason| Err(io::Error::new(io::ErrorKind::NotFound, reason));
    if records.is_empty() {
        return none("the name has no SRV records");
    }
    let ordered = order(records, random_up_to);
    if ordered.is_empty() {
        return none("by its SRV record the service is not offered");
    }
    let hosts = ordered.into_iter().take(ADDRESSES_LIMIT);
    Ok(hosts.map(|record| (record.host, record.port)).collect())
}

/// The servers that a file of the form of `resolv.conf` names, as C libraries read it.
#[must_use]
pub fn name_servers(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == "nameserver").then_some(())?;
        let word = words.next()?;
        if let Ok(ip) = word.parse::<IpAddr>() {
            return Some(SocketAddr::new(ip, PORT));
        }
        // The system knows which device a zone is, without a look-up.
        let (address, _) = word.split_once('%')?;
        address.parse::<Ipv6Addr>().ok()?;
        (word, PORT).to_socket_addrs().ok()?.next()
    };
    text.lines().filter_map(server).take(SERVERS_MOST).collect()
}

/// The answer of the first server that gives one; the next is asked when one fails, or has not answered
/// for as long as [`race`] waits.
async fn ask_one_of(name: &str, servers: &[SocketAddr]) -> io::Result<Vec<Record>> {
    let question = question(name, random_up_to(u32::MAX) as u16)?;
    let asked = race(servers, |server| {
        let question = question.clone();
        async move { ask(&question, server).await }
    });
    let answered = asked.await.map_err(|error| match servers {
        [server] => io::Error::new(error.kind(), format!("name server {server}: {error}")),
        _ => io::Error::new(error.kind(), format!("name servers: {error}")),
    });
    answered.map(|(records, _)| records)
}

async fn ask(question: &Question, server: SocketAddr) -> io::Result<Vec<Record>> {
    let answer = match ask_over_udp(question, server).await? {
        answer if answer.header().tc() => {
            let answered = timeout(ANSWER_WITHIN, ask_over_tcp(question, server)).await;
            answered
                .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no answer over TCP"))??
        }
        answer => answer,
    };
    match answer.header().rcode() {
        Rcode::NOERROR => read(&answer).ok_or_else(|| malformed("the answer cannot be read")),
        Rcode::NXDOMAIN => Ok(Vec::new()),
        code => Err(io::Error::other(format!("it answers {code}"))),
    }
}

fn malformed(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

async fn ask_over_udp(question: &Question, server: SocketAddr) -> io::Result<Message<Vec<u8>>> {
    let any: IpAddr = if server.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    // Only what comes from that server is received.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    let mut buffer = vec![0; usize::from(DATAGRAM_BYTES)];
    for _ in 0..TRIES {
        socket.send(question.as_slice()).await?;
        let answered = timeout(ANSWER_WITHIN, async {
            loop {
                let length = socket.recv(&mut buffer).await?;
                let message =
                    Message::from_octets(buffer.get(..length).unwrap_or_default().to_vec());
                // What answers another question is passed over.
                if let Some(answer) = message.ok().filter(|message| message.is_answer(question)) {
                    return Ok(answer);
                }
            }
        });
        if let Ok(answer) = answered.await {
            return answer;
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"))
}

async fn ask_over_tcp(question: &Question, server: SocketAddr) -> io::Result<Message<Vec<u8>>> {
    let mut stream = TcpStream::connect(server).await?;
    let bytes = question.as_slice();
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?.to_be_bytes();
    stream.write_all(&[&length, bytes].concat()).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    let answer = Message::from_octets(answer).ok().filter(|message| message.is_answer(question));
    answer.ok_or_else(|| malformed("the answer over TCP cannot be read"))
}

/// A question for the SRV records of a name, with recursion.
fn question(name: &str, id: u16) -> io::Result<Question> {
    let name = Name::vec_from_str(name).map_err(io::Error::other)?;
    let mut message = MessageBuilder::new_vec();
    message.header_mut().set_id(id);
    message.header_mut().set_rd(true);
    let mut message = message.question();
    message.push((&name, Rtype::SRV)).map_err(io::Error::other)?;
    let mut message = message.additional();
    let stated = message.opt(|options| {
        options.set_udp_payload_size(DATAGRAM_BYTES);
        Ok(())
    });
    stated.map_err(io::Error::other)?;
    Ok(message.into_message())
}

/// The records of an answer; `None` if it cannot be read.
fn read(answer: &Message<Vec<u8>>) -> Option<Vec<Record>> {
    let name = answer.canonical_name()?;
    let mut records = Vec::new();
    for record in answer.answer().ok()?.limit_to_in::<Srv<_>>() {
        let record = record.ok()?;
        if record.owner().name_eq(&name) {
            let srv = record.data();
            let host = srv.target();
            records.push(Record {
                priority: srv.priority(),
                weight: srv.weight(),
                port: srv.port(),
                host: if host.is_root() { String::new() } else { host.to_string() },
            });
        }
    }
    Some(records)
}

/// Records by priority; within a priority each position falls to one by its weight (RFC 2782). `draw` gives
/// a number from 0 to its argument. A record without a host stands for: not offered.
fn order(mut records: Vec<Record>, mut draw: impl FnMut(u32) -> u32) -> Vec<Record> {
    records.retain(|record| !record.host.is_empty() && record.port != 0);
    // Those without a weight come first, so that they have a small chance.
    records.sort_by_key(|record| (record.priority, record.weight != 0));
    let mut ordered = Vec::with_capacity(records.len());
    while let Some(priority) = records.first().map(|record| record.priority) {
        let same = records.iter().take_while(|record| record.priority == priority);
        let weights: Vec<u32> = same.map(|record| u32::from(record.weight)).collect();
        let drawn = draw(weights.iter().sum());
        let mut sum = 0;
        let at = weights.iter().position(|weight| {
            sum += weight;
            sum >= drawn
        });
        ordered.push(records.remove(at.unwrap_or(0)));
    }
    ordered
}

/// A number from 0 to `most`, each as likely as any other.
fn random_up_to(most: u32) -> u32 {
    let mut bytes = [0; 8];
    // Without randomness the first is taken.
    let _ = SystemRandom::new().fill(&mut bytes);
    let wide = u128::from(u64::from_ne_bytes(bytes)) * (u128::from(most) + 1);
    (wide >> 64) as u32
}

#[cfg(test)]
mod tests {
    use domain::base::Ttl;
    use tokio::net::TcpListener;

    use super::*;

    const NAME: &str = "_tollway._tcp.example.org";

    fn record(priority: u16, weight: u16, host: &str) -> Record {
        Record { priority, weight, port: 15_010, host: host.to_owned() }
    }

    /// An answer to a question.
    fn answer(question: &[u8], code: Rcode, is_cut: bool, records: &[Record]) -> Vec<u8> {
        let question = Message::from_octets(question).unwrap();
        let mut message = MessageBuilder::new_vec().start_answer(&question, code).unwrap();
        message.header_mut().set_tc(is_cut);
        let name = Name::vec_from_str(NAME).unwrap();
        for Record { priority, weight, port, host } in records {
            let host = Name::vec_from_str(if host.is_empty() { "." } else { host }).unwrap();
            let srv = Srv::new(*priority, *weight, *port, host);
            message.push((&name, Ttl::from_secs(60), srv)).unwrap();
        }
        message.finish()
    }

    fn read_records(bytes: Vec<u8>) -> Option<Vec<Record>> {
        read(&Message::from_octets(bytes).ok()?)
    }

    #[test]
    fn records_are_read_from_an_answer_and_a_changed_one_does_no_harm() {
        let question = question(NAME, 7).unwrap();
        let records = [record(0, 5, "a.example.org"), record(1, 0, "b.org")];
        let message = answer(question.as_slice(), Rcode::NOERROR, false, &records);
        assert!(Message::from_octets(&message).unwrap().is_answer(&question));
        assert_eq!(read_records(message.clone()).unwrap(), records);
        for end in 0..message.len() {
            assert_eq!(read_records(message[..end].to_vec()), None, "{end}");
        }
        for at in 0..message.len() {
            for value in 0..=255 {
                let mut changed = message.clone();
                changed[at] = value;
                let _ = read_records(changed);
            }
        }
    }

    #[test]
    fn priorities_come_first_and_weights_share() {
        let records = || vec![record(1, 0, "c"), record(0, 3, "a"), record(0, 1, "b")];
        let mut first = 0;
        for _ in 0..40_000 {
            let ordered = order(records(), random_up_to);
            assert_eq!((ordered.len(), ordered[2].host.as_str()), (3, "c"));
            first += u32::from(ordered[0].host == "a");
        }
        // Of 0 to 4 one is drawn; what is up to 3 falls to one, the rest to the other.
        assert!((31_200..=32_800).contains(&first), "{first}");
        let none = record(0, 0, "");
        assert_eq!(order(vec![none.clone()], random_up_to), []);
        assert_eq!(order(vec![none, record(0, 0, "a")], |most| most), [record(0, 0, "a")]);
    }

    #[test]
    fn services_have_a_name_a_protocol_and_a_domain() {
        assert!(is_service(NAME) && is_service("_x._TCP.org."));
        let long = format!("_x._tcp.{}", "a".repeat(64));
        for text in ["", "_tcp.org", "x._tcp.org", "_._tcp.org", "_x._udp.org", "_x._tcp.", &long] {
            assert!(!is_service(text), "{text}");
        }
    }

    #[test]
    fn servers_are_read_as_a_c_library_does() {
        let text = "# comment\nsearch example\nnameserver 10.0.0.2\n nameserver\t2001:db8::1 # x\n\
                    nameserver nonsense\nnameserver fe80::1%lo\nnameserver 10.0.0.4\n";
        let texts: Vec<String> = name_servers(text).iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.0.0.2:53", "[2001:db8::1]:53", "[fe80::1%1]:53"]);
    }

    #[tokio::test]
    async fn what_does_not_fit_in_a_datagram_is_asked_again_over_tcp() {
        let records: Vec<Record> =
            (0..40).map(|n| record(n, 0, &format!("host-{n}.example.org"))).collect();
        let (tcp, udp) = loop {
            let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
                break (tcp, udp);
            }
        };
        let server = tcp.local_addr().unwrap();
        let whole = records.clone();
        tokio::spawn(async move {
            let mut asked = [0; 512];
            let (length, from) = udp.recv_from(&mut asked).await.unwrap();
            let mut other = answer(&asked[..length], Rcode::NOERROR, false, &[]);
            other[0] ^= 1;
            udp.send_to(&other, from).await.unwrap();
            let cut = answer(&asked[..length], Rcode::NOERROR, true, &[]);
            udp.send_to(&cut, from).await.unwrap();
            let (mut stream, _) = tcp.accept().await.unwrap();
            let length = usize::from(stream.read_u16().await.unwrap());
            stream.read_exact(&mut asked[..length]).await.unwrap();
            let message = answer(&asked[..length], Rcode::NOERROR, false, &whole);
            stream.write_u16(u16::try_from(message.len()).unwrap()).await.unwrap();
            stream.write_all(&message).await.unwrap();
        });
        // The first server is silent.
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let servers = [silent.local_addr().unwrap(), server];
        assert_eq!(ask_one_of(NAME, &servers).await.unwrap(), records);
    }

    #[tokio::test]
    async fn a_server_that_fails_is_named_and_one_that_denies_the_name_is_believed() {
        let answering = async |code| {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let address = udp.local_addr().unwrap();
            tokio::spawn(async move {
                let mut asked = [0; 512];
                while let Ok((length, from)) = udp.recv_from(&mut asked).await {
                    let message = answer(&asked[..length], code, false, &[]);
                    udp.send_to(&message, from).await.unwrap();
                }
            });
            address
        };
        let (fails, denies) = (answering(Rcode::SERVFAIL).await, answering(Rcode::NXDOMAIN).await);
        let refused = ask_one_of(NAME, &[fails]).await.unwrap_err().to_string();
        assert_eq!(refused, format!("name server {fails}: it answers SERVFAIL"));
        assert_eq!(ask_one_of(NAME, &[fails, denies]).await.unwrap(), []);
    }
}
