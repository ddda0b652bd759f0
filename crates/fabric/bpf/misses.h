/* Reports to the agent of addresses that the table lacks, and whose share of them is used up.
 *
 * A sender that looks for many addresses that do not exist would keep the reports of others out of
 * the ring and of the agent's queue. So each sender causes so many a second, and each virtual
 * network. A guest is a sender of its own only where the table shows that it lives at the outer
 * source: addresses can be invented. All others of a host are one sender, and those of all hosts
 * together have the share of one network. Processors that count at the same time may each let one
 * through.
 */
#ifndef FABRIC_MISSES_H
#define FABRIC_MISSES_H

#include "source.h"

#define SECOND_NS 1000000000ULL
#define NO_NETWORK 0xffffffff /* the share of senders that are in no network for certain */

/* Takes one of `per_second`, of which those of one second can be taken at once. */
static __always_inline int take_share(void *shares, const void *key, __u32 per_second, __u64 now)
{
	__u64 *used_up_to, next = now;

	if (!per_second)
		return 1;
	used_up_to = bpf_map_lookup_elem(shares, key);
	if (used_up_to && *used_up_to > now)
		next = *used_up_to;
	next += SECOND_NS / per_second;
	if (next - now > SECOND_NS)
		return 0;
	if (used_up_to)
		*used_up_to = next;
	else
		bpf_map_update_elem(shares, key, &next, BPF_ANY);
	return 1;
}

/* Reports the address that a frame is for as missing, at most once in `quiet_ms`. */
static __always_inline void report_miss(const struct frame *frame)
{
	__u64 now = bpf_ktime_get_ns();
	__u64 *last = bpf_map_lookup_elem(&reported, &frame->key);
	struct address sender = frame->source, *report;
	__u32 network = frame->vni;

	if (last && now - *last < (__u64)settings.quiet_ms * 1000000)
		return;
	if (residence(frame) != LIVES_THERE) {
		sender.space = 0;
		copy_words(sender.ip, frame->host);
		network = NO_NETWORK;
	}
	if (!take_share(&sender_shares, &sender, settings.sender_misses, now) ||
	    !take_share(&network_shares, &network, settings.network_misses, now)) {
		count(TOTAL_MISS_LIMITED);
		return;
	}
	report = bpf_ringbuf_reserve(&misses, sizeof(*report), 0);
	if (!report) {
		count(TOTAL_MISS_UNREPORTED);
		return;
	}
	*report = frame->key;
	bpf_ringbuf_submit(report, 0);
	bpf_map_update_elem(&reported, &frame->key, &now, BPF_ANY);
}

/* Counts what became of a frame that was for us, and reports a miss. */
static __always_inline void settle(struct frame *frame, int verdict)
{
	struct counters *counters;

	count(frame->what);
	counters = counters_of(frame->vni, verdict != VERDICT_DROP);
	if (frame->what == TOTAL_MISSED)
		report_miss(frame);
	if (!counters)
		return;
	switch (frame->what) {
	case TOTAL_FORWARDED:
		counters->forwarded_packets += 1;
		counters->forwarded_bytes += frame->inner_bytes;
		break;
	case TOTAL_ANSWERED_ARP:
	case TOTAL_ANSWERED_ND:
		counters->answered += 1;
		break;
	case TOTAL_MISSED:
		counters->missed += 1;
		break;
	default:
		counters->dropped += 1;
	}
}

#endif
