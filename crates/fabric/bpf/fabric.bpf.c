/* The forwarder's programs: XDP for devices whose driver runs it, and its twin for tc.
 *
 * Both hand the frame to `decide` and do what it says. They use no helper that asks for a licence
 * other than the project's.
 */
#include <linux/pkt_cls.h>

#include "decide.h"

/* Headers of any frame that is answered or rewritten, with room for options of a solicitation. */
#define HEADER_BYTES (ETH_HLEN + IP6_BYTES + UDP_BYTES + VXLAN_BYTES + ETH_HLEN + IP6_BYTES + 64)
/* Of these a checksum by the device is corrected (tc). */
#define SUMMED_BYTES 256

static __always_inline void look_at_xdp(struct xdp_md *ctx, struct frame *frame)
{
	frame->data = (void *)(long)ctx->data;
	frame->end = (void *)(long)ctx->data_end;
	frame->bytes = bpf_xdp_get_buff_len(ctx);
}

static __always_inline int advertise_by_xdp(struct xdp_md *ctx, struct frame *frame,
					    const __u32 ip_bytes)
{
	int grown = (int)advertisement_bytes(ip_bytes) - (int)frame->bytes;

	if (grown && bpf_xdp_adjust_tail(ctx, grown))
		return dropped(frame, TOTAL_MALFORMED);
	look_at_xdp(ctx, frame);
	return write_advertisement(frame, ip_bytes);
}

SEC("xdp.frags")
int fabric_xdp(struct xdp_md *ctx)
{
	struct frame frame = {};
	int verdict;

	look_at_xdp(ctx, &frame);
	verdict = decide(&frame);
	if (verdict == VERDICT_ADVERTISE4)
		verdict = advertise_by_xdp(ctx, &frame, IP4_BYTES);
	else if (verdict == VERDICT_ADVERTISE6)
		verdict = advertise_by_xdp(ctx, &frame, IP6_BYTES);
	if (verdict == VERDICT_PASS)
		return XDP_PASS;
	settle(&frame, verdict);
	switch (verdict) {
	case VERDICT_RETURN:
		return XDP_TX;
	case VERDICT_SEND:
		return bpf_redirect(frame.device, 0);
	}
	return XDP_DROP;
}

/* Passes everything: on the other end of a virtual cable, whose driver hands over frames of XDP
 * only to a device that has a program itself. */
SEC("xdp.frags")
int fabric_pass(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

static __always_inline void look_at_skb(struct __sk_buff *skb, struct frame *frame)
{
	frame->data = (void *)(long)skb->data;
	frame->end = (void *)(long)skb->data_end;
	frame->bytes = skb->len;
	frame->merged = skb->gso_size;
	frame->device = skb->ifindex;
}

/* The sum over what may be changed, for packets whose sum the device has taken. */
static __always_inline __u32 sum_of_headers(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 sum = 0;

	for (int at = ETH_HLEN; at < SUMMED_BYTES; at += 2) {
		__u16 *half = data + at;

		if ((void *)(half + 1) > end)
			break;
		sum += *half;
	}
	return sum;
}

static __always_inline int advertise_by_tc(struct __sk_buff *skb, struct frame *frame,
					   const __u32 ip_bytes)
{
	__u32 before;
	int verdict, is_summed;

	if (bpf_skb_change_tail(skb, advertisement_bytes(ip_bytes), 0) ||
	    bpf_skb_pull_data(skb, advertisement_bytes(ip_bytes)))
		return dropped(frame, TOTAL_MALFORMED);
	is_summed = bpf_csum_update(skb, 0) >= 0;
	before = is_summed ? sum_of_headers(skb) : 0;
	look_at_skb(skb, frame);
	verdict = write_advertisement(frame, ip_bytes);
	if (is_summed)
		bpf_csum_update(skb, add(sum_of_headers(skb), ~before));
	return verdict;
}

SEC("classifier")
int fabric_tc(struct __sk_buff *skb)
{
	struct frame frame = {};
	__u32 before;
	int verdict, is_summed;

	/* What cannot be pulled is shorter, which `decide` sees. */
	bpf_skb_pull_data(skb, skb->len < HEADER_BYTES ? skb->len : HEADER_BYTES);
	is_summed = bpf_csum_update(skb, 0) >= 0;
	before = is_summed ? sum_of_headers(skb) : 0;
	look_at_skb(skb, &frame);
	verdict = decide(&frame);
	if (is_summed)
		bpf_csum_update(skb, add(sum_of_headers(skb), ~before));
	if (verdict == VERDICT_ADVERTISE4)
		verdict = advertise_by_tc(skb, &frame, IP4_BYTES);
	else if (verdict == VERDICT_ADVERTISE6)
		verdict = advertise_by_tc(skb, &frame, IP6_BYTES);
	if (verdict == VERDICT_PASS)
		return TC_ACT_UNSPEC;
	settle(&frame, verdict);
	return verdict == VERDICT_DROP ? TC_ACT_SHOT : bpf_redirect(frame.device, 0);
}

char licence[] SEC("license") = "Apache-2.0";
