/* Whether the guest that a frame claims to be from lives at the host that sent it.
 *
 * The table has the host of each guest, so it shows which packets of a guest are forged: those that
 * come from another host.
 */
#ifndef FABRIC_SOURCE_H
#define FABRIC_SOURCE_H

#include "frame.h"

enum residence {
	LIVES_THERE,
	LIVES_ELSEWHERE,
	LIVES_UNKNOWN, /* the table has no entry for it, or the frame names no source */
};

static __always_inline enum residence residence(const struct frame *frame)
{
	struct neighbour *guest;

	if (!frame->source.space)
		return LIVES_UNKNOWN;
	guest = bpf_map_lookup_elem(&neighbours, &frame->source);
	if (!guest)
		return LIVES_UNKNOWN;
	if (((guest->host_ip[0] ^ frame->host[0]) | (guest->host_ip[1] ^ frame->host[1]) |
	     (guest->host_ip[2] ^ frame->host[2]) | (guest->host_ip[3] ^ frame->host[3])))
		return LIVES_ELSEWHERE;
	return LIVES_THERE;
}

/* Why a frame is dropped for its source; 0 if it is not. A question that names no source claims
 * nothing, and its answer goes to the host that it came from. */
static __always_inline int refuse_source(const struct frame *frame)
{
	if (settings.source_check == SOURCES_UNCHECKED || !frame->source.space)
		return 0;
	switch (residence(frame)) {
	case LIVES_THERE:
		return 0;
	case LIVES_ELSEWHERE:
		return TOTAL_SOURCE_FOREIGN;
	default:
		if (settings.source_check == SOURCES_STRICT)
			return TOTAL_SOURCE_UNKNOWN;
		count(TOTAL_SOURCE_UNVERIFIED);
		return 0;
	}
}

#endif
