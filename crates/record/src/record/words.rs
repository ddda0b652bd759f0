//! The closed sets of words in a record. A new word needs a new reader.

use serde::{Deserialize, Serialize};

macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$vmeta])* #[serde(rename = $word)] $variant),+ }

        impl $name {
            /// Every value, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word in the record.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

words! {
    /// What the load generator spoke.
    Protocol {
        Http1 = "http1", Http2 = "http2", GrpcUnary = "grpc-unary", GrpcStream = "grpc-stream", Tcp = "tcp",
        /// Echoes of ICMP.
        Icmp = "icmp",
        /// Frames in VXLAN.
        Vxlan = "vxlan",
    }
}

impl Protocol {
    /// What the rates and numbers of a row count, in the plural.
    #[must_use]
    pub fn counted(self) -> &'static str {
        match self {
            Self::GrpcStream => "messages",
            Self::Icmp => "echoes",
            Self::Vxlan => "packets",
            Self::Http1 | Self::Http2 | Self::GrpcUnary | Self::Tcp => "requests",
        }
    }
}

words! {
    /// What the connections between caller and callee (or between the proxies) were secured with.
    Tls { Plain = "plain", Tls = "tls", Mtls = "mtls" }
}
words! {
    /// Where caller and callee are.
    Topology {
        SameNetwork = "same-network",
        /// Another network in the same region.
        OtherNetwork = "other-network",
        /// Another network in another region.
        OtherRegion = "other-region",
    }
}
words! {
    /// Which processes share processors.
    Layout {
        /// Everything on every processor.
        Shared = "shared",
        /// The subject on its own processor, generator and callee on the others.
        Pinned = "pinned",
    }
}
words! {
    /// When requests are sent.
    Arrival {
        /// At a rate, evenly spaced, whatever comes back.
        OpenUniform = "open-uniform",
        /// At a rate, each moved within its interval at random, whatever comes back.
        OpenJitter = "open-jitter",
        /// At a rate, exponentially spaced, whatever comes back.
        OpenPoisson = "open-poisson",
        /// At a rate, several at once and then none for as long as they take at it, whatever comes
        /// back.
        OpenBursts = "open-bursts",
        /// The next when the last is answered, on each connection.
        Closed = "closed",
        /// A flow of as many bytes as possible; there are no requests and no latencies.
        Flow = "flow",
        /// As many packets as possible in one direction; requests are those that arrived, errors
        /// those that did not, and there are no latencies.
        Packets = "packets",
    }
}
words! {
    /// What carries the packets between the networks.
    LinkKind {
        /// Packets delayed between network namespaces.
        Tun = "tun",
        /// A byte stream delayed on loopback: no packet loss, no congestion control over the delay.
        Relay = "relay",
        /// A network that is there anyway.
        Real = "real",
    }
}
words! {
    /// What a comparison answers.
    Question {
        /// The same subject, further away.
        AddedByNetwork = "added-by-network",
        /// One path, with the mesh on it.
        AddedByTollway = "added-by-tollway",
        /// Two subjects or two records side by side.
        AgainstBaseline = "against-baseline",
    }
}
words! {
    /// What is compared. Latencies are response times.
    Metric {
        LatencyMean = "latency-mean",
        /// Difference of the two medians, not the median of differences.
        LatencyP50 = "latency-p50",
        LatencyP90 = "latency-p90",
        LatencyP99 = "latency-p99",
        /// Of all the machine's processors, per request.
        MachineCpu = "machine-cpu-per-request",
        /// A second over the answers in it, in closed loop or at the highest rate that a search
        /// found: what one more answer takes.
        TimePerAnswer = "time-per-answer",
        /// Of a flow: the window over the megabytes (1,000,000 bytes) in it.
        TimePerMegabyte = "time-per-megabyte",
        /// Of packets: the window over those that came out in it.
        TimePerPacket = "time-per-packet",
    }
}
words! {
    /// The verdict of the ratio's interval. "Faster" means less time.
    Verdict { Faster = "faster", Slower = "slower", Same = "same", Undecided = "undecided" }
}
words! {
    /// How intervals were made: of 95 %, but for those of searches.
    IntervalMethod {
        /// Student's t over blocks (jackknifed over blocks for quantiles); fewer than 6 blocks.
        BlockT = "block-t",
        /// Bootstrap over blocks, percentiles widened for the number of blocks; 6 blocks or more.
        BlockBootstrap = "block-bootstrap",
        /// No repetition: what the intervals of two searches leave open, from the highest rate
        /// that held to the lowest that did not.
        Search = "search",
    }
}
words! {
    /// What a published figure counts.
    FigureUnit {
        Microseconds = "us",
        Milliseconds = "ms",
        RequestsPerSecond = "requests/s",
        MegabitsPerSecond = "Mbit/s",
        /// Of a processor.
        Millicores = "millicores",
        /// 1,048,576 bytes.
        Mebibytes = "MiB",
        /// Of the same figure of `direct`, 0 to 1.
        OfDirect = "of direct",
    }
}
