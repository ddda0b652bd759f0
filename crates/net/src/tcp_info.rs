//! The kernel's figures of a TCP connection: round trips, windows, segments sent again.

#![allow(unsafe_code, reason = "TCP_INFO is read by getsockopt")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// One reading of a connection's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Segments sent again since the connection began.
    pub retransmits: u64,
    /// The congestion window.
    pub cwnd_bytes: u64,
    /// The smoothed round trip.
    pub rtt_us: u64,
    /// Its mean deviation.
    pub rttvar_us: u64,
    /// The largest packet of the path.
    pub pmtu_bytes: u64,
}

/// The state of a TCP socket.
///
/// # Errors
/// When the descriptor is no TCP socket.
pub fn tcp_info(socket: impl AsFd) -> io::Result<TcpInfo> {
    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of::<libc::tcp_info>())
        .expect("a structure of a few hundred bytes");
    // SAFETY: the descriptor is open for the call, the buffer is `length` bytes long, and the
    // kernel writes at most that.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all of it was zeroed, every bit pattern of its integers is a value, and an older
    // kernel leaves at zero what it does not know.
    let info = unsafe { info.assume_init() };
    Ok(TcpInfo {
        retransmits: u64::from(info.tcpi_total_retrans),
        cwnd_bytes: u64::from(info.tcpi_snd_cwnd) * u64::from(info.tcpi_snd_mss),
        rtt_us: u64::from(info.tcpi_rtt),
        rttvar_us: u64::from(info.tcpi_rttvar),
        pmtu_bytes: u64::from(info.tcpi_pmtu),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_has_a_round_trip_and_a_window() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let info = tcp_info(&stream).unwrap();
        assert!(info.cwnd_bytes > 0 && info.pmtu_bytes > 0, "{info:?}");
        assert_eq!(info.retransmits, 0);
    }

    #[test]
    fn what_is_no_tcp_socket_is_refused() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(tcp_info(&socket).is_err());
    }
}
