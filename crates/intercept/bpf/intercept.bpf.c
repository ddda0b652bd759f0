/* The programs of an app's cgroup: they lead its connections and its questions for names to the
 * sidecar, and hide that from the app.
 *
 * connect and sendmsg change where a socket goes, before the kernel looks for a route; what the app
 * meant stays with the socket. When a connection stands, what it was meant for is put where the
 * sidecar finds it by the connection's source. getpeername and recvmsg show the app what it meant.
 * Nothing is done for a packet. The programs use no helper that asks for a licence other than the
 * project's.
 *
 * Layouts are those of crates/intercept/src/layout.rs. Addresses are in network order, numbers in
 * the machine's.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define PROTOCOL_TCP 6
#define PROTOCOL_UDP 17
#define PORT_OF_NAMES 53
#define LOOPBACK4 0x7f000001
#define MAPPED 0xffff
#define FAMILY_IPV6 10
#define ADDRESS_BITS 128

/* Connections that stand and that the sidecar has not accepted yet: no more than its listener queues,
 * and what was left by connections that ended before. */
#define STANDING 16384
#define SPARED 1024

/* Where the sidecar listens. Written when the programs are loaded, so that the verifier sees
 * constants. */
struct settings {
	__u64 netns;      /* the cookie of the sidecar's network namespace; 0: not known */
	__u16 listener;   /* for connections, at both loopback addresses */
	__u16 names_udp;  /* for questions for names */
	__u16 names_tcp;
	__u16 app_port;   /* opened on loopback alone; 0: as the app asks */
	__u8 has_ipv6;    /* the listeners are at ::1, too */
	__u8 leads_all;   /* connections out of the mesh, too */
	__u8 unused[6];
};

const volatile struct settings settings = {};

/* Has the compiler read a value where the code does: two reads of the context that it makes one, at a
 * computed offset, are refused. */
#define KEPT(value) asm volatile("" : "+r"(value))

/* An address, IPv4 as ::ffff:a.b.c.d, and a port. */
struct place {
	__be32 ip[4];
	__u32 port;
};

/* What the app meant by a socket that leads to the sidecar. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct place);
} meant SEC(".maps");

/* By the source of a connection, what it was meant for. The sidecar takes an entry out as it accepts
 * the connection; those of connections that ended before give way to new ones. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, STANDING);
	__type(key, struct place);
	__type(value, struct place);
} standing SEC(".maps");

struct range {
	__u32 prefix_bits; /* of 128 */
	__be32 ip[4];
};

/* What is left as the app asks for it. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, SPARED);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct range);
	__type(value, __u8);
} spared_ranges SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SPARED);
	__type(key, __u32);
	__type(value, __u8);
} spared_ports SEC(".maps");

static __always_inline int is_ipv4(const struct place *place)
{
	return !place->ip[0] && !place->ip[1] && place->ip[2] == bpf_htonl(MAPPED);
}

/* The first byte of an IPv4 address. */
static __always_inline __u8 first_byte(const struct place *place)
{
	return bpf_ntohl(place->ip[3]) >> 24;
}

/* Whether it is of the range out of which names of the mesh have their addresses. */
static __always_inline int is_name(const struct place *to)
{
	return is_ipv4(to) && first_byte(to) >= 240 && first_byte(to) != 255;
}

/* Whether it is this host: loopback, or no address, which the kernel takes for loopback. */
static __always_inline int is_here(const struct place *to)
{
	if (is_ipv4(to))
		return first_byte(to) == 127 || !to->ip[3];
	return !to->ip[0] && !to->ip[1] && !to->ip[2] && (to->ip[3] == bpf_htonl(1) || !to->ip[3]);
}

static __always_inline int is_spared(const struct place *to)
{
	struct range range = { .prefix_bits = ADDRESS_BITS };

	__builtin_memcpy(range.ip, to->ip, sizeof(range.ip));
	return bpf_map_lookup_elem(&spared_ports, &to->port) ||
	       bpf_map_lookup_elem(&spared_ranges, &range);
}

/* The port of the sidecar that a socket is led to; 0: it goes where the app wants. */
static __always_inline __u16 way_of(const struct place *to, __u32 protocol)
{
	if (!is_ipv4(to) && !settings.has_ipv6)
		return 0;
	if (protocol == PROTOCOL_UDP)
		return to->port == PORT_OF_NAMES ? settings.names_udp : 0;
	if (protocol != PROTOCOL_TCP)
		return 0;
	if (to->port == PORT_OF_NAMES)
		return settings.names_tcp;
	if (is_name(to))
		return settings.listener;
	if (!settings.leads_all || is_here(to) || is_spared(to))
		return 0;
	return settings.listener;
}

/* An app may enter another network namespace, where the sidecar does not listen. */
static __always_inline int is_elsewhere(struct bpf_sock_addr *ctx)
{
	return settings.netns && bpf_get_netns_cookie(ctx) != settings.netns;
}

static __always_inline struct place place4(struct bpf_sock_addr *ctx)
{
	struct place place = {
		.ip = { 0, 0, bpf_htonl(MAPPED), ctx->user_ip4 },
		.port = bpf_ntohs((__u16)ctx->user_port),
	};

	return place;
}

static __always_inline struct place place6(struct bpf_sock_addr *ctx)
{
	struct place place = {
		.ip = { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] },
		.port = bpf_ntohs((__u16)ctx->user_port),
	};

	return place;
}

/* Decides where a socket goes. What the app meant is kept with it. Returns the port of the sidecar,
 * 0 to leave the socket alone, or less than 0 if it cannot be kept. */
static __always_inline int lead(struct bpf_sock_addr *ctx, const struct place *to)
{
	struct bpf_sock *socket = ctx->sk;
	struct place *kept;
	__u16 port = is_elsewhere(ctx) ? 0 : way_of(to, ctx->protocol);

	if (!socket)
		return 0;
	if (!port) {
		/* It may have led to the sidecar before. */
		bpf_sk_storage_delete(&meant, socket);
		return 0;
	}
	kept = bpf_sk_storage_get(&meant, socket, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!kept)
		return -1;
	*kept = *to;
	return port;
}

static __always_inline int lead4(struct bpf_sock_addr *ctx)
{
	struct place to = place4(ctx);
	int port = lead(ctx, &to);

	if (port < 0)
		return 0;
	if (port) {
		ctx->user_ip4 = bpf_htonl(LOOPBACK4);
		ctx->user_port = bpf_htons((__u16)port);
	}
	return 1;
}

static __always_inline int lead6(struct bpf_sock_addr *ctx)
{
	struct place to = place6(ctx);
	int port = lead(ctx, &to);

	if (port < 0)
		return 0;
	if (port) {
		ctx->user_ip6[0] = 0;
		ctx->user_ip6[1] = 0;
		ctx->user_ip6[2] = is_ipv4(&to) ? bpf_htonl(MAPPED) : 0;
		ctx->user_ip6[3] = is_ipv4(&to) ? bpf_htonl(LOOPBACK4) : bpf_htonl(1);
		ctx->user_port = bpf_htons((__u16)port);
	}
	return 1;
}

/* What the app meant by a socket, if it leads to the sidecar. */
static __always_inline struct place *meant_by(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *socket = ctx->sk;

	return socket ? bpf_sk_storage_get(&meant, socket, 0, 0) : NULL;
}

static __always_inline void show4(struct bpf_sock_addr *ctx, const struct place *to)
{
	ctx->user_ip4 = to->ip[3];
	ctx->user_port = bpf_htons((__u16)to->port);
}

static __always_inline void show6(struct bpf_sock_addr *ctx, const struct place *to)
{
	ctx->user_ip6[0] = to->ip[0];
	ctx->user_ip6[1] = to->ip[1];
	ctx->user_ip6[2] = to->ip[2];
	ctx->user_ip6[3] = to->ip[3];
	ctx->user_port = bpf_htons((__u16)to->port);
}

SEC("cgroup/connect4")
int intercept_connect4(struct bpf_sock_addr *ctx)
{
	return lead4(ctx);
}

SEC("cgroup/connect6")
int intercept_connect6(struct bpf_sock_addr *ctx)
{
	return lead6(ctx);
}

SEC("cgroup/sendmsg4")
int intercept_sendmsg4(struct bpf_sock_addr *ctx)
{
	return lead4(ctx);
}

SEC("cgroup/sendmsg6")
int intercept_sendmsg6(struct bpf_sock_addr *ctx)
{
	return lead6(ctx);
}

/* The answer to a question for a name comes from where the app asked it. */
SEC("cgroup/recvmsg4")
int intercept_recvmsg4(struct bpf_sock_addr *ctx)
{
	struct place from = place4(ctx);
	struct place *to = meant_by(ctx);

	if (to && from.port == settings.names_udp && is_here(&from))
		show4(ctx, to);
	return 1;
}

SEC("cgroup/recvmsg6")
int intercept_recvmsg6(struct bpf_sock_addr *ctx)
{
	struct place from = place6(ctx);
	struct place *to = meant_by(ctx);

	if (to && from.port == settings.names_udp && is_here(&from))
		show6(ctx, to);
	return 1;
}

SEC("cgroup/getpeername4")
int intercept_getpeername4(struct bpf_sock_addr *ctx)
{
	struct place *to = meant_by(ctx);

	if (to)
		show4(ctx, to);
	return 1;
}

SEC("cgroup/getpeername6")
int intercept_getpeername6(struct bpf_sock_addr *ctx)
{
	struct place *to = meant_by(ctx);

	if (to)
		show6(ctx, to);
	return 1;
}

/* The app's port is for its sidecar alone: a port of all addresses is opened on loopback. */
SEC("cgroup/bind4")
int intercept_bind4(struct bpf_sock_addr *ctx)
{
	struct place at = place4(ctx);

	if (settings.app_port && at.port == settings.app_port && !at.ip[3] && !is_elsewhere(ctx))
		ctx->user_ip4 = bpf_htonl(LOOPBACK4);
	return 1;
}

SEC("cgroup/bind6")
int intercept_bind6(struct bpf_sock_addr *ctx)
{
	struct place at = place6(ctx);

	if (settings.app_port && at.port == settings.app_port && !at.ip[0] && !at.ip[1] &&
	    !at.ip[2] && !at.ip[3] && !is_elsewhere(ctx)) {
		ctx->user_ip6[2] = bpf_htonl(MAPPED);
		ctx->user_ip6[3] = bpf_htonl(LOOPBACK4);
	}
	return 1;
}

/* A connection that leads to the sidecar stands, which has not seen its last packet yet. */
SEC("sockops")
int intercept_established(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *socket = ctx->sk;
	struct place from = {};
	struct place *to;
	__be32 last;

	if (ctx->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || !socket)
		return 1;
	to = bpf_sk_storage_get(&meant, socket, 0, 0);
	if (!to)
		return 1;
	/* A socket of IPv6 may carry a connection of IPv4. */
	if (ctx->family == FAMILY_IPV6 && !is_ipv4(to)) {
		from.ip[0] = ctx->local_ip6[0];
		from.ip[1] = ctx->local_ip6[1];
		from.ip[2] = ctx->local_ip6[2];
		last = ctx->local_ip6[3];
		KEPT(last);
	} else {
		from.ip[2] = bpf_htonl(MAPPED);
		last = ctx->local_ip4;
		KEPT(last);
	}
	from.ip[3] = last;
	from.port = ctx->local_port;
	bpf_map_update_elem(&standing, &from, to, BPF_ANY);
	return 1;
}

char licence[] SEC("license") = "Apache-2.0";
