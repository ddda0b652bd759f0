/* Who has an address: ARP (RFC 826) and IPv6 neighbour solicitations (RFC 4861), answered from the
 * table. The answer goes back to the host that the question came from.
 *
 * An owner that asks for its own address, to find a duplicate or to announce itself, gets none.
 */
#ifndef FABRIC_ANSWER_H
#define FABRIC_ANSWER_H

#include "frame.h"

#define ARP_ETHERNET 1
#define ARP_REQUEST 1
#define ARP_REPLY 2
#define ICMP6_SOLICITATION 135
#define ICMP6_ADVERTISEMENT 136
#define OPTION_TARGET_MAC 2
#define OPTION_SOURCE_MAC 1
#define SOLICITATION_BYTES 24     /* without options */
#define MAX_SOLICITATION_BYTES 64 /* with options */
#define HOP_LIMIT_OF_NEIGHBOURS 255
#define SOLICITED 0x40000000
#define OVERRIDES 0x20000000

struct arp {
	__be16 hardware, protocol;
	__u8 hardware_bytes, protocol_bytes;
	__be16 operation;
	__u8 sender_mac[MAC_BYTES];
	__be16 sender_ip[2];
	__u8 target_mac[MAC_BYTES];
	__be16 target_ip[2];
} __attribute__((packed, aligned(2)));

struct neighbour_message {
	__u8 type, code;
	__u16 checksum;
	__be32 flags;
	__be32 target[4];
};

struct mac_option {
	__u8 type, units; /* of 8 bytes */
	__u8 mac[MAC_BYTES];
};

struct advertisement {
	struct neighbour_message message;
	struct mac_option owner;
};

/* Ethernet, IPv6, and an advertisement with the owner's address. */
#define ADVERTISEMENT_FRAME (ETH_HLEN + IP6_BYTES + sizeof(struct advertisement))

struct pseudo_header {
	__be32 from[4], to[4];
	__be32 bytes, next;
};

/* Turns the outer headers round. A UDP checksum over IPv4 is left out; over IPv6 it is the
 * caller's to set again. */
static __always_inline int turn_outer(struct frame *frame, const __u32 ip_bytes)
{
	struct ethhdr *outer = PART(frame, 0, struct ethhdr);
	struct udphdr *udp = PART(frame, ETH_HLEN + ip_bytes, struct udphdr);
	__u8 mac[MAC_BYTES] __attribute__((aligned(2)));
	__be32 address[4];

	if (!outer || !udp)
		return 0;
	copy_mac(mac, outer->h_dest);
	copy_mac(outer->h_dest, outer->h_source);
	copy_mac(outer->h_source, mac);
	if (ip_bytes == IP4_BYTES) {
		struct iphdr *ip = PART(frame, ETH_HLEN, struct iphdr);

		if (!ip)
			return 0;
		address[0] = ip->saddr;
		ip->saddr = ip->daddr;
		ip->daddr = address[0];
		set_ttl(ip, FRESH_TTL);
		udp->check = 0;
	} else {
		struct ipv6hdr *ip = PART(frame, ETH_HLEN, struct ipv6hdr);

		if (!ip)
			return 0;
		copy_words(address, ip->saddr.in6_u.u6_addr32);
		copy_words(ip->saddr.in6_u.u6_addr32, ip->daddr.in6_u.u6_addr32);
		copy_words(ip->daddr.in6_u.u6_addr32, address);
		ip->hop_limit = FRESH_TTL;
	}
	return 1;
}

static __always_inline __u32 sum_of_question(struct ethhdr *inner, struct arp *arp)
{
	/* The addresses of the frame, and the message: 12 and 28 bytes. */
	return add(sum_of(inner, 2 * MAC_BYTES), sum_of(arp, sizeof(*arp)));
}

/* Reads which address an ARP message asks for, and for which sender. */
static __always_inline int read_arp(struct frame *frame, const __u32 ip_bytes)
{
	const __u32 at = ETH_HLEN + ip_bytes + UDP_BYTES + VXLAN_BYTES;
	struct arp *arp = PART(frame, at + ETH_HLEN, struct arp);

	if (!arp || frame->inner_bytes < ETH_HLEN + sizeof(*arp))
		return dropped(frame, TOTAL_MALFORMED);
	if (arp->hardware != bpf_htons(ARP_ETHERNET) || arp->protocol != bpf_htons(ETH_P_IP) ||
	    arp->hardware_bytes != MAC_BYTES || arp->protocol_bytes != 4)
		return dropped(frame, TOTAL_MALFORMED);
	if (arp->operation != bpf_htons(ARP_REQUEST) ||
	    (arp->sender_ip[0] == arp->target_ip[0] && arp->sender_ip[1] == arp->target_ip[1]))
		return dropped(frame, TOTAL_FLOOD);
	frame->key.space = frame->vni | 4 << FAMILY_SHIFT;
	__builtin_memcpy(&frame->key.ip[0], arp->target_ip, sizeof(arp->target_ip));
	if (arp->sender_ip[0] | arp->sender_ip[1]) {
		frame->source.space = frame->key.space;
		__builtin_memcpy(&frame->source.ip[0], arp->sender_ip, sizeof(arp->sender_ip));
	}
	return VERDICT_ANSWER;
}

static __always_inline int answer_arp(struct frame *frame, const __u32 ip_bytes)
{
	const __u32 at = ETH_HLEN + ip_bytes + UDP_BYTES + VXLAN_BYTES;
	struct ethhdr *inner = PART(frame, at, struct ethhdr);
	struct arp *arp = PART(frame, at + ETH_HLEN, struct arp);
	struct udphdr *udp = PART(frame, ETH_HLEN + ip_bytes, struct udphdr);
	struct neighbour *owner;
	__be16 asked[2];
	__u32 before;

	if (!inner || !arp || !udp)
		return dropped(frame, TOTAL_MALFORMED);
	asked[0] = arp->target_ip[0];
	asked[1] = arp->target_ip[1];
	owner = bpf_map_lookup_elem(&neighbours, &frame->key);
	if (!owner)
		return dropped(frame, TOTAL_MISSED);
	copy_mac(frame->owner, owner->mac);
	if (same_mac(frame->owner, arp->sender_mac))
		return dropped(frame, TOTAL_FLOOD);
	before = sum_of_question(inner, arp);
	copy_mac(inner->h_dest, inner->h_source);
	copy_mac(inner->h_source, frame->owner);
	arp->operation = bpf_htons(ARP_REPLY);
	copy_mac(arp->target_mac, arp->sender_mac);
	arp->target_ip[0] = arp->sender_ip[0];
	arp->target_ip[1] = arp->sender_ip[1];
	copy_mac(arp->sender_mac, frame->owner);
	arp->sender_ip[0] = asked[0];
	arp->sender_ip[1] = asked[1];
	correct_udp(frame, udp, add(sum_of_question(inner, arp), ~before));
	if (!turn_outer(frame, ip_bytes))
		return dropped(frame, TOTAL_MALFORMED);
	return answered(frame, TOTAL_ANSWERED_ARP);
}

static __always_inline __u16 sum_of_message(struct ipv6hdr *ip, __u32 bytes, __u32 body)
{
	struct pseudo_header pseudo = {};

	copy_words(pseudo.from, ip->saddr.in6_u.u6_addr32);
	copy_words(pseudo.to, ip->daddr.in6_u.u6_addr32);
	pseudo.bytes = bpf_htonl(bytes);
	pseudo.next = bpf_htonl(IPPROTO_ICMPV6);
	return fold(add(sum_of(&pseudo, sizeof(pseudo)), body));
}

/* Whether a solicitation keeps the rules of RFC 4861, section 7.1.1; `bytes` is what its IPv6
 * header says. */
static __always_inline int solicitation_is_valid(struct frame *frame, struct ipv6hdr *ip,
						 struct neighbour_message *asked, __u32 bytes)
{
	struct mac_option *option = (void *)(asked + 1);
	const __be32 *from = ip->saddr.in6_u.u6_addr32, *to = ip->daddr.in6_u.u6_addr32;

	if (asked->code || ip->hop_limit != HOP_LIMIT_OF_NEIGHBOURS ||
	    (bpf_ntohl(asked->target[0]) >> 24) == 0xff)
		return 0;
	/* Of several options the first is the sender's address, or some other. */
	if (bytes > SOLICITATION_BYTES) {
		if ((void *)(option + 1) > frame->end || !option->units ||
		    option->units * 8 > bytes - SOLICITATION_BYTES)
			return 0;
	}
	if (!(from[0] | from[1] | from[2] | from[3])) {
		/* Looks for a duplicate: to the group of the address, without one of its own. */
		if (to[0] != bpf_htonl(0xff020000) || to[1] || to[2] != bpf_htonl(1) ||
		    (bpf_ntohl(to[3]) >> 24) != 0xff)
			return 0;
		if (bytes > SOLICITATION_BYTES && option->type == OPTION_SOURCE_MAC)
			return 0;
	}
	return 1;
}

/* Whether all of a solicitation is there, in units of 8 bytes as options are, and its checksum is
 * right. */
static __always_inline int solicitation_is_whole(struct frame *frame, struct ipv6hdr *ip,
						 struct neighbour_message *asked, __u32 bytes)
{
	__u32 sum = 0;

	if (bytes < SOLICITATION_BYTES || bytes > MAX_SOLICITATION_BYTES || bytes & 7)
		return 0;
	for (__u32 at = 0; at < MAX_SOLICITATION_BYTES; at += 2) {
		__u16 *half = (void *)asked + at;

		if (at >= bytes)
			break;
		if ((void *)(half + 1) > frame->end)
			return 0;
		sum += *half;
	}
	return sum_of_message(ip, bytes, sum) == 0xffff;
}

/* Reads which address a solicitation asks for, and for which sender. */
static __always_inline int read_solicitation(struct frame *frame, const __u32 ip_bytes, __u32 bytes)
{
	const __u32 at = ETH_HLEN + ip_bytes + UDP_BYTES + VXLAN_BYTES;
	struct ipv6hdr *ip = PART(frame, at + ETH_HLEN, struct ipv6hdr);
	struct neighbour_message *asked =
		PART(frame, at + ETH_HLEN + IP6_BYTES, struct neighbour_message);

	if (!ip || !asked || !solicitation_is_valid(frame, ip, asked, bytes) ||
	    !solicitation_is_whole(frame, ip, asked, bytes))
		return dropped(frame, TOTAL_MALFORMED);
	frame->key.space = frame->vni | 6 << FAMILY_SHIFT;
	copy_words(frame->key.ip, asked->target);
	copy_words(frame->source.ip, ip->saddr.in6_u.u6_addr32);
	if (frame->source.ip[0] | frame->source.ip[1] | frame->source.ip[2] | frame->source.ip[3])
		frame->source.space = frame->key.space;
	return VERDICT_ANSWER;
}

/* Looks up who is asked for; the answer is written by `write_advertisement` once there is room. */
static __always_inline int answer_solicitation(struct frame *frame, const __u32 ip_bytes)
{
	const __u32 at = ETH_HLEN + ip_bytes + UDP_BYTES + VXLAN_BYTES;
	struct ethhdr *inner = PART(frame, at, struct ethhdr);
	struct neighbour *owner;

	if (!inner)
		return dropped(frame, TOTAL_MALFORMED);
	owner = bpf_map_lookup_elem(&neighbours, &frame->key);
	if (!owner)
		return dropped(frame, TOTAL_MISSED);
	copy_mac(frame->owner, owner->mac);
	if (same_mac(frame->owner, inner->h_source))
		return dropped(frame, TOTAL_FLOOD);
	return ip_bytes == IP4_BYTES ? VERDICT_ADVERTISE4 : VERDICT_ADVERTISE6;
}

/* The frame's length once it is an advertisement. */
static __always_inline __u32 advertisement_bytes(const __u32 ip_bytes)
{
	return ETH_HLEN + ip_bytes + UDP_BYTES + VXLAN_BYTES + ADVERTISEMENT_FRAME;
}

static __always_inline int set_outer_lengths(struct frame *frame, const __u32 ip_bytes)
{
	const __u16 udp_bytes = UDP_BYTES + VXLAN_BYTES + ADVERTISEMENT_FRAME;
	struct udphdr *udp = PART(frame, ETH_HLEN + ip_bytes, struct udphdr);
	struct iphdr *ip4 = PART(frame, ETH_HLEN, struct iphdr);
	struct ipv6hdr *ip6 = PART(frame, ETH_HLEN, struct ipv6hdr);
	__be16 total = bpf_htons(IP4_BYTES + udp_bytes);

	if (!udp)
		return 0;
	udp->len = bpf_htons(udp_bytes);
	if (ip_bytes == IP4_BYTES) {
		if (!ip4)
			return 0;
		ip4->check = changed(ip4->check, difference16(ip4->tot_len, total));
		ip4->tot_len = total;
	} else {
		if (!ip6)
			return 0;
		ip6->payload_len = bpf_htons(udp_bytes);
	}
	return 1;
}

static __always_inline int write_inner_advertisement(struct frame *frame, const __u32 ip_bytes)
{
	const __u32 at = ETH_HLEN + ip_bytes + UDP_BYTES + VXLAN_BYTES;
	struct ethhdr *inner = PART(frame, at, struct ethhdr);
	struct ipv6hdr *ip = PART(frame, at + ETH_HLEN, struct ipv6hdr);
	struct advertisement *answer = PART(frame, at + ETH_HLEN + IP6_BYTES, struct advertisement);
	__be32 *from, *to;
	__u32 flags = OVERRIDES;

	if (!inner || !ip || !answer)
		return 0;
	from = ip->saddr.in6_u.u6_addr32;
	to = ip->daddr.in6_u.u6_addr32;
	copy_mac(inner->h_dest, inner->h_source);
	copy_mac(inner->h_source, frame->owner);
	if (from[0] | from[1] | from[2] | from[3]) {
		flags |= SOLICITED;
		copy_words(to, from);
	} else { /* looked for a duplicate: all nodes are told */
		to[0] = bpf_htonl(0xff020000);
		to[1] = to[2] = 0;
		to[3] = bpf_htonl(1);
		inner->h_dest[0] = inner->h_dest[1] = 0x33;
		inner->h_dest[2] = inner->h_dest[3] = inner->h_dest[4] = 0;
		inner->h_dest[5] = 1;
	}
	copy_words(from, answer->message.target);
	ip->payload_len = bpf_htons(sizeof(*answer));
	answer->message.type = ICMP6_ADVERTISEMENT;
	answer->message.checksum = 0;
	answer->message.flags = bpf_htonl(flags);
	answer->owner.type = OPTION_TARGET_MAC;
	answer->owner.units = 1;
	copy_mac(answer->owner.mac, frame->owner);
	answer->message.checksum =
		~sum_of_message(ip, sizeof(*answer), sum_of(answer, sizeof(*answer)));
	return 1;
}

/* Over IPv6 a UDP checksum is owed, unless the question had none. */
static __always_inline int write_udp6_checksum(struct frame *frame)
{
	const __u32 bytes = UDP_BYTES + VXLAN_BYTES + ADVERTISEMENT_FRAME;
	struct ipv6hdr *ip = PART(frame, ETH_HLEN, struct ipv6hdr);
	struct udphdr *udp = PART(frame, ETH_HLEN + IP6_BYTES, struct udphdr);
	struct pseudo_header pseudo = {};
	__u32 sum;

	if (!ip || !udp || (void *)udp + bytes > frame->end)
		return 0;
	if (!udp->check)
		return 1;
	udp->check = 0;
	copy_words(pseudo.from, ip->saddr.in6_u.u6_addr32);
	copy_words(pseudo.to, ip->daddr.in6_u.u6_addr32);
	pseudo.bytes = bpf_htonl(bytes);
	pseudo.next = bpf_htonl(IPPROTO_UDP);
	/* 102 bytes: what csum_diff takes, and two more. */
	sum = add(sum_of(&pseudo, sizeof(pseudo)), sum_of(udp, bytes - 2));
	sum = add(sum, *(__u16 *)((void *)udp + bytes - 2));
	udp->check = ~fold(sum);
	if (!udp->check)
		udp->check = 0xffff;
	return 1;
}

/* Makes an advertisement of a solicitation, in a frame that has the length for it. */
static __always_inline int write_advertisement(struct frame *frame, const __u32 ip_bytes)
{
	if (!turn_outer(frame, ip_bytes) || !set_outer_lengths(frame, ip_bytes) ||
	    !write_inner_advertisement(frame, ip_bytes) ||
	    (ip_bytes == IP6_BYTES && !write_udp6_checksum(frame)))
		return dropped(frame, TOTAL_MALFORMED);
	return answered(frame, TOTAL_ANSWERED_ND);
}

#endif
