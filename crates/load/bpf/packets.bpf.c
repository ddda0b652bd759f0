/* Packets by the million: made in the kernel, as fast as they go, and counted where they come out.
 *
 * `packets_make` is run by BPF_PROG_TEST_RUN with live frames: each is written anew, since the
 * kernel uses them again as whoever had them left them. `packets_count_xdp` and its twin for tc
 * count what `packets_make` made, take it away, and let everything else pass.
 *
 * Layouts are those of crates/load/src/packets.rs.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Ethernet, IPv4, UDP, VXLAN, Ethernet, IPv4, UDP: 92 bytes, and 4 of payload. */
#define HEAD_WORDS 12
#define HEAD_BYTES (8 * HEAD_WORDS)
#define OUTER_PORT_AT 34
#define INNER_MAC_AT 50
#define INNER_SUM_AT 74
#define INNER_TO_AT 80

/* Numbers of neighbours become addresses as crates/load/src/neighbours/population.rs has it. */
#define NETWORK 0x0a000000u
#define SPREAD 0x9e3779b1u
#define LOW_BITS 0x00ffffffu

/* What is made; written when the programs are loaded, so the verifier sees constants. */
struct plan {
	__u64 head[HEAD_WORDS]; /* with everything that all packets have in common */
	__u32 device;           /* they leave by: its index */
	__u32 flows;            /* neighbours that they go to, at least 1 */
	__u32 inner_sum;        /* of the inner IPv4 header without its destination */
	__u32 unused;
};

const volatile struct plan plan = {};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} arrived SEC(".maps");

SEC("xdp")
int packets_make(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 number = 0, ip, sum;
	__u64 *words = data;

	if (data + HEAD_BYTES > end)
		return XDP_ABORTED;
	if (plan.flows > 1)
		number = bpf_get_prandom_u32() % plan.flows;
	ip = NETWORK + ((number * SPREAD) & LOW_BITS);
	for (int at = 0; at < HEAD_WORDS; at++)
		words[at] = plan.head[at];
	*(__be16 *)(data + OUTER_PORT_AT) = bpf_htons(0xc000 | (number & 0x3fff));
	/* 2:1:0 and the number. */
	*(__be16 *)(data + INNER_MAC_AT) = bpf_htons(0x0201);
	*(__be32 *)(data + INNER_MAC_AT + 2) = bpf_htonl(number & LOW_BITS);
	*(__be32 *)(data + INNER_TO_AT) = bpf_htonl(ip);
	sum = plan.inner_sum + (ip >> 16) + (ip & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	*(__be16 *)(data + INNER_SUM_AT) = bpf_htons(~sum);
	return bpf_redirect(plan.device, 0);
}

/* Whether it is VXLAN over IPv4 without options. */
static __always_inline int is_made(void *data, void *end)
{
	const __u8 *bytes = data;

	if (data + HEAD_BYTES > end)
		return 0;
	return *(__be16 *)(bytes + 12) == bpf_htons(ETH_P_IP) && bytes[14] == 0x45 &&
	       bytes[23] == 17 && *(__be16 *)(bytes + 36) == bpf_htons(4789);
}

static __always_inline void count(void)
{
	__u32 first = 0;
	__u64 *found = bpf_map_lookup_elem(&arrived, &first);

	if (found)
		*found += 1;
}

SEC("xdp")
int packets_count_xdp(struct xdp_md *ctx)
{
	if (!is_made((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return XDP_PASS;
	count();
	return XDP_DROP;
}

SEC("classifier")
int packets_count_tc(struct __sk_buff *skb)
{
	bpf_skb_pull_data(skb, skb->len < HEAD_BYTES ? skb->len : HEAD_BYTES);
	if (!is_made((void *)(long)skb->data, (void *)(long)skb->data_end))
		return TC_ACT_UNSPEC;
	count();
	return TC_ACT_SHOT;
}

/* Passes everything: in the place of `packets_count_xdp` once nothing is counted any more. */
SEC("xdp")
int packets_pass(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

char licence[] SEC("license") = "Apache-2.0";
