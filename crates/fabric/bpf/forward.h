/* A packet to a neighbour: addressed to its host, and to it.
 *
 * The forwarder is a hop of the outer network, so the outer time to live goes down by one, which
 * ends loops between forwarders. In the virtual network it is a switch to frames that carry the
 * neighbour's address already, and a router to others: those lose one of the inner time to live.
 */
#ifndef FABRIC_FORWARD_H
#define FABRIC_FORWARD_H

#include "frame.h"

/* Where it leaves: by which device, under which addresses. */
static __always_inline int find_exit(struct frame *frame, const struct neighbour *to,
				     struct link *exit)
{
	struct link_key key = {.prefix_bits = 128};
	struct link *found;

	copy_words(key.ip, to->host_ip);
	found = bpf_map_lookup_elem(&links, &key);
	if (!found)
		return TOTAL_NO_LINK;
	if (!frame->merged && frame->bytes > found->mtu + ETH_HLEN)
		return TOTAL_TOO_BIG;
	*exit = *found;
	return 0;
}

static __always_inline int address_outer4(struct frame *frame, const struct neighbour *to,
					  const struct link *exit)
{
	struct iphdr *ip = PART(frame, ETH_HLEN, struct iphdr);
	struct udphdr *udp = PART(frame, ETH_HLEN + IP4_BYTES, struct udphdr);
	__be32 before[2], after[2];
	__u32 change;

	if (!ip || !udp)
		return TOTAL_MALFORMED;
	before[0] = ip->saddr;
	before[1] = ip->daddr;
	after[0] = settings.several_devices ? exit->address[3] : ip->daddr;
	after[1] = to->host_ip[3];
	change = difference(before, after, sizeof(before));
	ip->saddr = after[0];
	ip->daddr = after[1];
	ip->check = changed(ip->check, change);
	set_ttl(ip, ip->ttl - 1);
	correct_udp(frame, udp, change);
	return 0;
}

static __always_inline int address_outer6(struct frame *frame, const struct neighbour *to,
					  const struct link *exit)
{
	struct ipv6hdr *ip = PART(frame, ETH_HLEN, struct ipv6hdr);
	struct udphdr *udp = PART(frame, ETH_HLEN + IP6_BYTES, struct udphdr);
	__be32 before[8], after[8];

	if (!ip || !udp)
		return TOTAL_MALFORMED;
	copy_words(before, ip->saddr.in6_u.u6_addr32);
	copy_words(before + 4, ip->daddr.in6_u.u6_addr32);
	copy_words(after, settings.several_devices ? exit->address : before + 4);
	copy_words(after + 4, to->host_ip);
	copy_words(ip->saddr.in6_u.u6_addr32, after);
	copy_words(ip->daddr.in6_u.u6_addr32, after + 4);
	ip->hop_limit -= 1;
	correct_udp(frame, udp, difference(before, after, sizeof(before)));
	return 0;
}

/* One hop less for a frame that is routed; its checksums that the UDP checksum covers follow. */
static __always_inline int pass_inner_hop(struct frame *frame, const __u32 ip_bytes,
					  __be16 protocol, __u32 *change)
{
	const __u32 inner = ETH_HLEN + ip_bytes + UDP_BYTES + VXLAN_BYTES + ETH_HLEN;
	struct iphdr *ip4 = PART(frame, inner, struct iphdr);
	struct ipv6hdr *ip6;

	if (protocol == bpf_htons(ETH_P_IP)) {
		if (!ip4)
			return TOTAL_MALFORMED;
		if (ip4->ttl <= 1)
			return TOTAL_EXPIRED;
		set_ttl(ip4, ip4->ttl - 1); /* the header's sum stays what it was */
		return 0;
	}
	ip6 = PART(frame, inner, struct ipv6hdr);
	if (!ip6)
		return TOTAL_MALFORMED;
	if (ip6->hop_limit <= 1)
		return TOTAL_EXPIRED;
	{
		__u16 *field = (__u16 *)&ip6->nexthdr; /* and the hop limit beside it */
		__u16 before = *field;

		ip6->hop_limit -= 1;
		*change = add(*change, difference16(before, *field));
	}
	return 0;
}

/* Writes the neighbour's address into the inner frame. */
static __always_inline int address_inner(struct frame *frame, const struct neighbour *to,
					 const __u32 ip_bytes)
{
	const __u32 at = ETH_HLEN + ip_bytes + UDP_BYTES + VXLAN_BYTES;
	struct ethhdr *inner = PART(frame, at, struct ethhdr);
	struct udphdr *udp = PART(frame, ETH_HLEN + ip_bytes, struct udphdr);
	__u16 *before, *after;
	__u32 change = 0;
	int why;

	if (!inner || !udp)
		return TOTAL_MALFORMED;
	if (same_mac(inner->h_dest, to->mac))
		return 0;
	why = pass_inner_hop(frame, ip_bytes, inner->h_proto, &change);
	if (why)
		return why;
	before = (__u16 *)inner->h_dest;
	after = (__u16 *)to->mac;
	change = add(change, difference16(before[0], after[0]));
	change = add(change, difference16(before[1], after[1]));
	change = add(change, difference16(before[2], after[2]));
	copy_mac(inner->h_dest, to->mac);
	/* Of merged segments the checksum holds the pseudo header alone. */
	if (!frame->merged)
		correct_udp(frame, udp, change);
	return 0;
}

static __always_inline int outer_hop_is_left(struct frame *frame, const __u32 ip_bytes)
{
	struct iphdr *ip4 = PART(frame, ETH_HLEN, struct iphdr);
	struct ipv6hdr *ip6 = PART(frame, ETH_HLEN, struct ipv6hdr);

	if (ip_bytes == IP4_BYTES)
		return ip4 && ip4->ttl > 1;
	return ip6 && ip6->hop_limit > 1;
}

static __always_inline int forward(struct frame *frame, const struct neighbour *to,
				   const __u32 ip_bytes)
{
	struct ethhdr *outer = PART(frame, 0, struct ethhdr);
	struct link exit = {};
	int why;

	if (!outer)
		return dropped(frame, TOTAL_MALFORMED);
	if (is_mapped(to->host_ip) != (ip_bytes == IP4_BYTES))
		return dropped(frame, TOTAL_NO_LINK);
	if (!outer_hop_is_left(frame, ip_bytes))
		return dropped(frame, TOTAL_EXPIRED);
	if (settings.several_devices) {
		why = find_exit(frame, to, &exit);
		if (why)
			return dropped(frame, why);
		frame->device = exit.device;
	}
	why = address_inner(frame, to, ip_bytes);
	if (why)
		return dropped(frame, why);
	why = ip_bytes == IP4_BYTES ? address_outer4(frame, to, &exit)
				    : address_outer6(frame, to, &exit);
	if (why)
		return dropped(frame, why);
	copy_mac(outer->h_source, settings.several_devices ? exit.mac : outer->h_dest);
	copy_mac(outer->h_dest, to->host_mac);
	frame->what = TOTAL_FORWARDED;
	return settings.several_devices ? VERDICT_SEND : VERDICT_RETURN;
}

#endif
