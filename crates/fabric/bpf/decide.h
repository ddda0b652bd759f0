/* What is to be done with a frame, the same for XDP and tc: read from outside in, checked on the
 * way, and rewritten where it stands.
 *
 * What is not VXLAN to this forwarder is passed untouched. What is, is answered, forwarded, or
 * dropped and counted with the reason.
 */
#ifndef FABRIC_DECIDE_H
#define FABRIC_DECIDE_H

#include "answer.h"
#include "forward.h"
#include "misses.h"

#define VNI_IS_VALID 0x08

static __always_inline int decide_ip4(struct frame *frame, const __u32 ip_bytes)
{
	const __u32 at = ETH_HLEN + ip_bytes + UDP_BYTES + VXLAN_BYTES;
	struct iphdr *ip = PART(frame, at + ETH_HLEN, struct iphdr);
	__u32 total, group;

	if (!ip)
		return dropped(frame, TOTAL_MALFORMED);
	if (ip->version != 4)
		return dropped(frame, TOTAL_UNSUPPORTED);
	total = bpf_ntohs(ip->tot_len);
	if (ip->ihl < 5 || (!frame->merged && (total < ip->ihl * 4 ||
					       total + ETH_HLEN > frame->inner_bytes)))
		return dropped(frame, TOTAL_MALFORMED);
	group = bpf_ntohl(ip->daddr) >> 28;
	if (group == 0xe || ip->daddr == 0xffffffff)
		return dropped(frame, TOTAL_FLOOD);
	frame->key.space = frame->vni | 4 << FAMILY_SHIFT;
	frame->key.ip[0] = ip->daddr;
	frame->source.space = frame->key.space;
	frame->source.ip[0] = ip->saddr;
	return VERDICT_FORWARD;
}

static __always_inline int decide_ip6(struct frame *frame, const __u32 ip_bytes)
{
	const __u32 at = ETH_HLEN + ip_bytes + UDP_BYTES + VXLAN_BYTES;
	struct ipv6hdr *ip = PART(frame, at + ETH_HLEN, struct ipv6hdr);
	__u8 *type = PART(frame, at + ETH_HLEN + IP6_BYTES, __u8);
	__u32 payload;

	if (!ip)
		return dropped(frame, TOTAL_MALFORMED);
	if (ip->version != 6)
		return dropped(frame, TOTAL_UNSUPPORTED);
	payload = bpf_ntohs(ip->payload_len);
	if (!frame->merged && payload + IP6_BYTES + ETH_HLEN > frame->inner_bytes)
		return dropped(frame, TOTAL_MALFORMED);
	if (ip->nexthdr == IPPROTO_ICMPV6 && payload && type && *type == ICMP6_SOLICITATION)
		return read_solicitation(frame, ip_bytes, payload);
	if (ip->daddr.in6_u.u6_addr8[0] == 0xff)
		return dropped(frame, TOTAL_FLOOD);
	frame->key.space = frame->vni | 6 << FAMILY_SHIFT;
	copy_words(frame->key.ip, ip->daddr.in6_u.u6_addr32);
	frame->source.space = frame->key.space;
	copy_words(frame->source.ip, ip->saddr.in6_u.u6_addr32);
	return VERDICT_FORWARD;
}

static __always_inline int decide_inner(struct frame *frame, const __u32 ip_bytes, __be16 protocol)
{
	struct neighbour *found, to;
	int verdict, why;

	if (protocol == bpf_htons(ETH_P_IP))
		verdict = decide_ip4(frame, ip_bytes);
	else if (protocol == bpf_htons(ETH_P_IPV6))
		verdict = decide_ip6(frame, ip_bytes);
	else if (protocol == bpf_htons(ETH_P_ARP))
		verdict = read_arp(frame, ip_bytes);
	else
		verdict = dropped(frame, TOTAL_UNSUPPORTED);
	if (verdict == VERDICT_DROP)
		return verdict;
	why = refuse_source(frame);
	if (why)
		return dropped(frame, why);
	if (verdict == VERDICT_ANSWER)
		return protocol == bpf_htons(ETH_P_ARP) ? answer_arp(frame, ip_bytes)
							: answer_solicitation(frame, ip_bytes);
	found = bpf_map_lookup_elem(&neighbours, &frame->key);
	if (!found)
		return dropped(frame, TOTAL_MISSED);
	/* The kernel may use the entry for another key once it is replaced. */
	to = *found;
	return forward(frame, &to, ip_bytes);
}

/* From the UDP header on. `ip_bytes` is a constant, `payload` what the IP header says follows. */
static __always_inline int decide_udp(struct frame *frame, const __u32 ip_bytes, __u32 payload)
{
	struct udphdr *udp = PART(frame, ETH_HLEN + ip_bytes, struct udphdr);
	struct vxlan *vxlan = PART(frame, ETH_HLEN + ip_bytes + UDP_BYTES, struct vxlan);
	struct ethhdr *inner =
		PART(frame, ETH_HLEN + ip_bytes + UDP_BYTES + VXLAN_BYTES, struct ethhdr);

	if (!udp || udp->dest != settings.port)
		return VERDICT_PASS;
	if (!vxlan || !inner || !(vxlan->flags & VNI_IS_VALID))
		return dropped(frame, TOTAL_MALFORMED);
	frame->vni = bpf_ntohl(vxlan->vni) >> 8;
	if (frame->merged)
		payload = frame->bytes - ETH_HLEN - ip_bytes;
	else if (bpf_ntohs(udp->len) != payload || ETH_HLEN + ip_bytes + payload > frame->bytes ||
		 payload < UDP_BYTES + VXLAN_BYTES + ETH_HLEN)
		return dropped(frame, TOTAL_MALFORMED);
	frame->inner_bytes = payload - UDP_BYTES - VXLAN_BYTES;
	return decide_inner(frame, ip_bytes, inner->h_proto);
}

static __always_inline int is_own_address6(const __be32 *ip)
{
	__be32 any = settings.address6[0] | settings.address6[1] | settings.address6[2] |
		     settings.address6[3];

	return any && ip[0] == settings.address6[0] && ip[1] == settings.address6[1] &&
	       ip[2] == settings.address6[2] && ip[3] == settings.address6[3];
}

static __always_inline int is_own_mac(const __u8 *mac)
{
	return mac[0] == settings.mac[0] && mac[1] == settings.mac[1] &&
	       mac[2] == settings.mac[2] && mac[3] == settings.mac[3] &&
	       mac[4] == settings.mac[4] && mac[5] == settings.mac[5];
}

static __always_inline int decide(struct frame *frame)
{
	struct ethhdr *outer = PART(frame, 0, struct ethhdr);
	struct iphdr *ip4 = PART(frame, ETH_HLEN, struct iphdr);
	struct ipv6hdr *ip6;

	if (!outer || !ip4 || !is_own_mac(outer->h_dest))
		return VERDICT_PASS;
	if (outer->h_proto == bpf_htons(ETH_P_IP)) {
		if (ip4->version != 4 || ip4->ihl != 5 || ip4->protocol != IPPROTO_UDP ||
		    !settings.address4 || ip4->daddr != settings.address4)
			return VERDICT_PASS;
		if (ip4->frag_off & bpf_htons(FRAGMENT_BITS)) {
			count(TOTAL_OUTER_FRAGMENT);
			return VERDICT_PASS;
		}
		frame->host[2] = bpf_htonl(0xffff);
		frame->host[3] = ip4->saddr;
		return decide_udp(frame, IP4_BYTES, bpf_ntohs(ip4->tot_len) - IP4_BYTES);
	}
	ip6 = PART(frame, ETH_HLEN, struct ipv6hdr);
	if (outer->h_proto != bpf_htons(ETH_P_IPV6) || !ip6 || ip6->version != 6 ||
	    ip6->nexthdr != IPPROTO_UDP || !is_own_address6(ip6->daddr.in6_u.u6_addr32))
		return VERDICT_PASS;
	copy_words(frame->host, ip6->saddr.in6_u.u6_addr32);
	return decide_udp(frame, IP6_BYTES, bpf_ntohs(ip6->payload_len));
}

#endif
