/* The Internet checksum: sums of parts, and its change when a part changes (RFC 1624). */
#ifndef FABRIC_CHECKSUM_H
#define FABRIC_CHECKSUM_H

#include "tables.h"

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)sum;
}

static __always_inline __u32 add(__u32 sum, __u32 more)
{
	sum += more;
	return sum + (sum < more);
}

/* What has to be added when `from` becomes `to`, both 16 bits in network order. */
static __always_inline __u32 difference16(__u16 from, __u16 to)
{
	return add((__u16)~from, to);
}

/* The sum of `bytes` bytes, a multiple of 4 and at most 512. */
static __always_inline __u32 sum_of(void *from, __u32 bytes)
{
	return (__u32)bpf_csum_diff(0, 0, from, bytes, 0);
}

/* What has to be added when one address becomes another. */
static __always_inline __u32 difference(__be32 *from, __be32 *to, const __u32 bytes)
{
	return (__u32)bpf_csum_diff(from, bytes, to, bytes, 0);
}

/* A checksum after a change of what it covers. */
static __always_inline __u16 changed(__u16 checksum, __u32 difference)
{
	return ~fold(add((__u16)~checksum, difference));
}

#endif
