/* What the programs and the agent share: settings, tables, counters.
 *
 * Layouts are those of crates/fabric/src/layout.rs. Numbers are in the machine's byte order unless
 * "network order" is said; addresses always are in network order.
 */
#ifndef FABRIC_TABLES_H
#define FABRIC_TABLES_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define MAC_BYTES 6
#define FAMILY_SHIFT 24

/* Which packets are meant for this forwarder. Written by the agent when it loads the programs, one
 * load for each device, so the verifier sees constants. */
struct settings {
	__u8 mac[MAC_BYTES];   /* of the device */
	__be16 port;           /* of VXLAN, UDP */
	__be32 address4;       /* 0: no VXLAN over IPv4 */
	__be32 address6[4];    /* zeros: no VXLAN over IPv6 */
	__u32 several_devices; /* 0: everything leaves by the device it came in */
	__u32 quiet_ms;        /* how long a key stays quiet that was reported as missed */
	__u32 source_check;    /* enum source_check */
	__u32 sender_misses;   /* reports of misses a second that one sender can cause; 0: no limit */
	__u32 network_misses;  /* those that all senders of a virtual network can cause together */
};

/* What becomes of a packet whose inner source does not live at the outer source. */
enum source_check {
	SOURCES_UNCHECKED,
	SOURCES_KNOWN,  /* dropped where the table has another host for it */
	SOURCES_STRICT, /* dropped where the table has no entry for it, too */
};

/* An address within a virtual network. */
struct address {
	__u32 space; /* the vni, and 4 or 6 above it for the family */
	__be32 ip[4]; /* IPv4 in the first word, the others 0 */
};

/* Who has an address, and behind which host. */
struct neighbour {
	__u8 mac[MAC_BYTES];
	__u8 host_mac[MAC_BYTES];
	__u32 round;       /* the agent's: the listing that brought it */
	__be32 host_ip[4]; /* IPv4 mapped: ::ffff:a.b.c.d */
	__u64 revision;    /* the agent's: the store's revision of it */
};

/* A network that one of the forwarder's devices is in. */
struct link_key {
	__u32 prefix_bits; /* of 128 */
	__be32 ip[4];      /* IPv4 mapped */
};

struct link {
	__u32 device; /* its index */
	__u32 mtu;    /* bytes of an IP packet */
	__u8 mac[MAC_BYTES];
	__u16 unused;
	__be32 address[4]; /* the forwarder's own on it, IPv4 mapped */
};

struct counters {
	__u64 forwarded_packets;
	__u64 forwarded_bytes; /* of inner frames */
	__u64 answered;
	__u64 missed;
	__u64 dropped;
};

/* What became of packets: the places of `totals`. */
enum total {
	TOTAL_FORWARDED,
	TOTAL_ANSWERED_ARP,
	TOTAL_ANSWERED_ND,
	TOTAL_MISSED,
	TOTAL_MISS_UNREPORTED, /* missed, and the ring was full */
	TOTAL_MALFORMED,
	TOTAL_UNSUPPORTED, /* neither IPv4, IPv6 nor ARP inside, or another version of either */
	TOTAL_FLOOD,       /* to a group, or an ARP or neighbour message that asks nothing */
	TOTAL_EXPIRED,     /* time to live or hop limit used up, outer or inner */
	TOTAL_TOO_BIG,     /* for the device it would leave by */
	TOTAL_NO_LINK,     /* the host is in no network of the forwarder, or of the other family */
	TOTAL_OUTER_FRAGMENT, /* passed to the kernel */
	TOTAL_UNCOUNTED,      /* of a vni for which `counters` had no room */
	TOTAL_MISS_LIMITED,   /* missed, and its sender or network has caused as many reports as it may */
	TOTAL_SOURCE_FOREIGN, /* the inner source lives at another host than the outer source */
	TOTAL_SOURCE_UNKNOWN, /* dropped: the table has no entry for the inner source */
	TOTAL_SOURCE_UNVERIFIED, /* passed on, though the table has no entry for the inner source */
	TOTALS,
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1048576);
	__type(key, struct address);
	__type(value, struct neighbour);
} neighbours SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 256);
	__type(key, struct link_key);
	__type(value, struct link);
} links SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TOTALS);
	__type(key, __u32);
	__type(value, __u64);
} totals SEC(".maps");

/* When a missed key was last reported, ns. The least recently used one gives way. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct address);
	__type(value, __u64);
} reported SEC(".maps");

/* Up to when senders, and virtual networks, have used up their shares of the reports, ns. A sender
 * is a guest where its packets come from its host, and else the host. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct address);
	__type(value, __u64);
} sender_shares SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} network_shares SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 262144);
} misses SEC(".maps");

const volatile struct settings settings = {};

static __always_inline void count(enum total what)
{
	__u32 place = what;
	__u64 *number = bpf_map_lookup_elem(&totals, &place);

	if (number)
		*number += 1;
}

/* The counters of a vni; made when `make` is set, for vnis that are known to exist. */
static __always_inline struct counters *counters_of(__u32 vni, const int make)
{
	struct counters *found = bpf_map_lookup_elem(&counters, &vni);

	if (!found && make) {
		struct counters fresh = {};

		bpf_map_update_elem(&counters, &vni, &fresh, BPF_NOEXIST);
		found = bpf_map_lookup_elem(&counters, &vni);
		if (!found)
			count(TOTAL_UNCOUNTED);
	}
	return found;
}

#endif
