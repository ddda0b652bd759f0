/* A VXLAN frame as it came in: where its parts are, and what is to be done with it. */
#ifndef FABRIC_FRAME_H
#define FABRIC_FRAME_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>

#include "checksum.h"
#include "tables.h"

#define IP4_BYTES 20
#define IP6_BYTES 40
#define UDP_BYTES 8
#define VXLAN_BYTES 8
#define FRAGMENT_BITS 0x3fff /* "more fragments", and the offset */
#define FRESH_TTL 64

struct vxlan {
	__u8 flags; /* 0x08: the vni is valid */
	__u8 unused[3];
	__be32 vni; /* in the upper 24 bits */
};

struct frame {
	void *data, *end; /* what can be read directly */
	__u32 bytes;      /* of the whole frame */
	__u32 merged;     /* several segments in one (tc only): lengths are not those on the wire */
	__u32 device;     /* where it is to leave, for VERDICT_SEND */
	__u32 vni;
	__u32 inner_bytes;   /* of the inner frame */
	enum total what;     /* what became of it */
	struct address key;    /* the address that it asks for or goes to */
	struct address source; /* the guest that it claims to be from; `space` is 0 if it names none */
	__be32 host[4];        /* the outer source, IPv4 mapped */
	__u8 owner[MAC_BYTES] __attribute__((aligned(2))); /* who has the address asked for */
};

enum verdict {
	VERDICT_PASS,      /* none of ours: the kernel's */
	VERDICT_DROP,      /* and counted as `what` */
	VERDICT_RETURN,    /* ready to leave by the device it came in */
	VERDICT_SEND,      /* ready to leave by `device` */
	VERDICT_FORWARD,   /* `key` has to be looked up (between the steps of `decide` only) */
	VERDICT_ANSWER,    /* a question, too */
	VERDICT_ADVERTISE4, /* to be made an advertisement, by outer family */
	VERDICT_ADVERTISE6,
};

/* A part of the frame as a pointer, or NULL where it is not all there. */
#define PART(frame, offset, type) \
	((frame)->data + (offset) + sizeof(type) > (frame)->end ? (type *)0 \
								: (type *)((frame)->data + (offset)))

static __always_inline int same_mac(const __u8 *one, const __u8 *other)
{
	const __u16 *a = (const __u16 *)one, *b = (const __u16 *)other;

	return !((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]));
}

static __always_inline void copy_mac(__u8 *to, const __u8 *from)
{
	__u16 *a = (__u16 *)to;
	const __u16 *b = (const __u16 *)from;

	a[0] = b[0];
	a[1] = b[1];
	a[2] = b[2];
}

static __always_inline void copy_words(__be32 *to, const __be32 *from)
{
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = from[3];
}

static __always_inline int is_mapped(const __be32 *ip)
{
	return !ip[0] && !ip[1] && ip[2] == bpf_htonl(0xffff);
}

static __always_inline int dropped(struct frame *frame, enum total why)
{
	frame->what = why;
	return VERDICT_DROP;
}

static __always_inline int answered(struct frame *frame, enum total what)
{
	frame->what = what;
	return VERDICT_RETURN;
}

/* Corrects the UDP checksum for a change of what it covers; one that is left out stays so.
 *
 * Of merged segments the field holds the sum of the pseudo header alone, not inverted: whoever
 * cuts them up completes it. */
static __always_inline void correct_udp(struct frame *frame, struct udphdr *udp, __u32 difference)
{
	if (!udp->check)
		return;
	if (frame->merged) {
		udp->check = fold(add(udp->check, difference));
		return;
	}
	udp->check = changed(udp->check, difference);
	if (!udp->check)
		udp->check = 0xffff;
}

static __always_inline void set_ttl(struct iphdr *ip, __u8 ttl)
{
	__u16 *field = (__u16 *)&ip->ttl; /* and the protocol beside it */
	__u16 before = *field;

	ip->ttl = ttl;
	ip->check = changed(ip->check, difference16(before, *field));
}

#endif
