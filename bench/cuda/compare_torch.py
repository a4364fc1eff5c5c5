#!/usr/bin/env python3
"""Our speed beside PyTorch's on the same GPU, in the same run.

1. Training: a plain PyTorch Llama of the preset's shape (torch.compile, bf16 autocast, fused AdamW, clipping) against
   `idattn bench train` with softmax and with interdomain.
2. The cores alone, forward and forward+backward: PyTorch SDPA (cuDNN, Flash), flash-linear-attention where it is installed, our
   kernels (bench/cuda/ops_cuda).

A speed is printed only after a check. Kernels: outputs and gradients against a float64 loop. The Llama: our initial weights are
loaded into it by their names, and loss and gradient norm of the same tokens must be those of `idattn train`. Ours: `idattn
bench`, ops_cuda check themselves.

    compare_torch.py --idattn build/idattn --ops-cuda build/release/bench/cuda/ops_cuda [--preset 125m] [--batch 8] [--seq 4096]
"""
import argparse
import functools
import gc
import glob
import json
import math
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


# ---- the Llama, with HF's names
class RMSNorm(nn.Module):
    def __init__(self, d, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


def linear(n_in, n_out):
    return nn.Linear(n_in, n_out, bias=False)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c["hidden_size"]
        self.h = c["num_attention_heads"]
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (linear(d, d) for _ in range(4))

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        q, k, v = (p(x).view(b, t, self.h, d // self.h).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        o = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        return self.o_proj(o.transpose(1, 2).reshape(b, t, d))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, f = c["hidden_size"], c["intermediate_size"]
        self.gate_proj, self.up_proj, self.down_proj = linear(d, f), linear(d, f), linear(f, d)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, eps = c["hidden_size"], c["rms_norm_eps"]
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(d, eps), RMSNorm(d, eps)
        self.self_attn, self.mlp = Attention(c), MLP(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])


class Llama(nn.Module):
    def __init__(self, c, seq):
        super().__init__()
        self.model, self.lm_head = Body(c), linear(c["hidden_size"], c["vocab_size"])
        d = c["hidden_size"] // c["num_attention_heads"]
        freq = c["rope_theta"] ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angle = torch.outer(torch.arange(seq, dtype=torch.float64), freq)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, ids, targets):
        x = self.model.embed_tokens(ids)
        if torch.is_autocast_enabled("cuda"):
            x = x.to(torch.bfloat16)  # our residual stream is bf16 too
        for layer in self.model.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.lm_head(self.model.norm(x))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


# ---- small helpers
def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def milliseconds(body, reps):
    """Median of `reps` calls after 5 more; before each the second-level cache is overwritten, as ops_cuda does."""
    times, flush = [], torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    for i in range(-5, reps):
        flush.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        body()
        end.record()
        end.synchronize()
        if i >= 0:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def free_memory():
    gc.collect()
    torch.cuda.empty_cache()


def off(x, y):
    return float((x.double() - y.double()).norm() / y.double().norm())


def read_safetensors(path):
    """name -> float32 tensor. Our files hold F32 here."""
    with open(path, "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
        body = bytearray(f.read())
    header.pop("__metadata__", None)
    tensors = {}
    for name, t in header.items():
        if t["dtype"] != "F32":
            sys.exit(f"{path}: {name} is {t['dtype']}, not F32")
        begin, end = t["data_offsets"]
        flat = torch.frombuffer(body, dtype=torch.float32, offset=begin, count=(end - begin) // 4)
        tensors[name] = flat.view(t["shape"]).clone()
    return tensors


def table(title, rows, base):
    """rows: (name, value or None, note). Higher is better; ratios to the row called base."""
    print(f"\n{title}")
    by_name = {name: value for name, value, _ in rows}
    for name, value, note in rows:
        ratio = f"{value / by_name[base]:6.2f}x" if value and by_name.get(base) else "      -"
        shown = f"{value:14,.1f}" if value else "             -"
        print(f"  {name:34} {shown} {ratio}  {note}")


# ---- 1. kernels
def attention_loop(q, k, v):
    s = q.double() @ k.double().transpose(-1, -2) / math.sqrt(q.shape[-1])
    return s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -math.inf).softmax(-1) @ v.double()


def linear_attention_loop(q, k, v, g, beta=None):
    """q, k, v: [B,T,H,D]; g: [B,T,H,D], logarithm of the decay of each key channel; beta: [B,T,H] or None.
    S_t = e^g S_(t-1) + k u^T, o_t = q S_t / sqrt(D); u = v, or with beta (delta rule) beta (v - k e^g S_(t-1))."""
    q, k, v, g = (x.double() for x in (q, k, v, g))
    b, t, h, d = q.shape
    state = torch.zeros(b, h, d, d, dtype=torch.float64, device=q.device)
    out = []
    for i in range(t):
        state = state * g[:, i].exp()[..., None]
        u = v[:, i]
        if beta is not None:
            u = beta[:, i].double()[..., None] * (u - (k[:, i][..., None, :] @ state).squeeze(-2))
        state = state + k[:, i][..., :, None] * u[..., None, :]
        out.append((q[:, i][..., None, :] @ state).squeeze(-2) / math.sqrt(d))
    return torch.stack(out, 1)


def errors(call, loop, shape):
    """Relative error of the outputs, and the largest of the three gradients', against the float64 loop."""
    x = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    got, want = call(*x), loop(*x)
    dout = torch.randn_like(got)
    grads = zip(torch.autograd.grad(got, x, dout), torch.autograd.grad(want, x, dout.double()))
    return off(got.detach(), want.detach()), max(off(a, b) for a, b in grads)


def time_both(call, inputs, reps):
    """Milliseconds of the forward pass, and of forward + backward."""
    with torch.no_grad():
        fwd = milliseconds(lambda: call(*inputs), reps)
    wanted = [x.detach().requires_grad_() for x in inputs]
    dout = torch.randn_like(call(*wanted))
    return fwd, milliseconds(lambda: torch.autograd.grad(call(*wanted), wanted, dout), reps)


def peers():
    """(name, layout, call, loop): layout "bhtd" or "bthd"."""
    for name, backend in BACKENDS.items():
        def sdpa(q, k, v, backend=backend):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        yield f"PyTorch SDPA {name}", "bhtd", sdpa, attention_loop
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
        from fla.ops.gla import chunk_gla
        from fla.ops.simple_gla import chunk_simple_gla
    except ImportError as e:
        print(f"flash-linear-attention: not installed here ({e})")
        return

    @functools.cache  # made once: only the kernels are timed
    def full(shape, value, dtype):
        return torch.full(shape, value, device="cuda", dtype=dtype)

    def decay(x, dtype=torch.float32):
        return full(x.shape, -0.05, dtype)

    def beta(x):
        return full(x.shape[:3], 0.5, x.dtype)

    def unit(x):
        return F.normalize(x.double(), dim=-1)

    yield "fla simple_gla (one decay a head)", "bthd", lambda q, k, v: chunk_simple_gla(q, k, v, g=decay(q[..., 0]))[0], \
        lambda q, k, v: linear_attention_loop(q, k, v, decay(q))
    yield "fla gla (a decay a channel)", "bthd", lambda q, k, v: chunk_gla(q, k, v, g=decay(q, q.dtype))[0], \
        lambda q, k, v: linear_attention_loop(q, k, v, decay(q, q.dtype))
    yield "fla gated_delta_rule", "bthd", \
        lambda q, k, v: chunk_gated_delta_rule(q, k, v, g=decay(q[..., 0]), beta=beta(q), use_qk_l2norm_in_kernel=True)[0], \
        lambda q, k, v: linear_attention_loop(unit(q), unit(k), v, decay(q), beta(q))


def ours_alone(a, h):
    """op -> milliseconds from ops_cuda, by path of attention."""
    found = {}
    for way in ("default", "own"):
        env = dict(os.environ)
        env.pop("IDA_ATTENTION", None)
        if way == "own":
            env["IDA_ATTENTION"] = "own"
        for op in ("attention", "interdomain_chunk"):
            if way == "own" and op != "attention":
                continue
            done = subprocess.run([a.ops_cuda, "--only", op, "--width", str(h * 64), "--tokens", str(a.batch * a.seq),
                                   "--seq", str(a.seq), "--repeats", str(a.reps)], stdout=subprocess.PIPE, text=True, env=env)
            for line in done.stdout.splitlines():
                word = line.split()
                if len(word) > 2 and word[0].startswith(op):
                    found[way, word[0]] = None if "check failed" in line else float(word[word.index("ms") - 1])
    return found


def kernels(a):
    h = a.heads
    rows = {"forward": [], "forward + backward": []}
    for name, layout, call, loop in peers():
        small, large = (2, 3, 192, 64), (a.batch, h, a.seq, 64)
        if layout == "bthd":
            small, large = (2, 192, 3, 64), (a.batch, a.seq, h, 64)
        try:
            out_off, grad_off = errors(call, loop, small)
        except Exception as e:  # a peer's own errors have many types
            print(f"{name}: not available here: {type(e).__name__}: {(str(e) or 'no text').splitlines()[0]}")
            continue
        times = (None, None)
        if out_off < 1e-2 and grad_off < 2e-2:  # bf16 tensors: 2e-3 is rounding
            times = time_both(call, [torch.randn(large, device="cuda", dtype=torch.bfloat16) for _ in range(3)], a.reps)
        for list_, t in zip(rows.values(), times):
            note = f"{t:.3f} ms, check" if t else "check failed:"
            note += f" {out_off:.1e}, gradients {grad_off:.1e}"
            list_.append((name, a.batch * a.seq / t if t else None, note))
    if a.ops_cuda:
        found = ours_alone(a, h)
        for way, op, name in (("default", "attention", "idattn softmax"),
                              ("own", "attention", "idattn softmax, IDA_ATTENTION=own"),
                              ("default", "interdomain_chunk", "idattn interdomain")):
            f, b = found.get((way, op + "_fwd")), found.get((way, op + "_bwd"))
            for list_, ms in zip(rows.values(), (f, f + b if f and b else None)):
                list_.append((name, a.batch * a.seq / ms if ms else None, f"{ms:.3f} ms" if ms else "check failed or not run"))
    for what, list_ in rows.items():
        table(f"core alone, {what}: B={a.batch} T={a.seq} H={h} D=64 bf16, tokens per ms", list_, "PyTorch SDPA cudnn")


# ---- 2. training
def our_first_step(a, folder):
    """Trains one step that changes nothing; gives the config, the weights, ids and targets, loss and gradient norm."""
    vocab, rows, seq = 32000, a.check_batch, a.check_seq
    random.seed(7)
    ids = [random.randrange(vocab) for _ in range(rows * seq + 1)]
    with open(os.path.join(folder, "train_0.bin"), "wb") as f:
        f.write(struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253))
        f.write(struct.pack(f"<{len(ids)}H", *ids))
    out = os.path.join(folder, "run")
    run([a.idattn, "train", "--preset", a.preset, "--mixer", "softmax", "--data", os.path.join(folder, "train_0.bin"),
         "--out", out, "--steps", "1", "--lr", "1e-30", "--min-lr", "0", "--weight-decay", "0", "--clip", "0",
         "--batch", str(rows), "--micro-batch", str(rows), "--seq-len", str(seq), "--device", a.device, "--quiet"])
    with open(os.path.join(out, "log.jsonl")) as f:
        step = [e for e in map(json.loads, f) if e["event"] == "step"][0]
    (model,) = glob.glob(os.path.join(out, "step-*"))
    with open(os.path.join(model, "config.json")) as f:
        config = json.load(f)
    x = torch.tensor(ids, device="cuda")
    return config, read_safetensors(os.path.join(model, "model.safetensors")), x[:-1].view(rows, seq), x[1:].view(rows, seq), step


def check_llama(a, folder):
    """The config and whether the Llama is the model that we train."""
    config, weights, ids, targets, step = our_first_step(a, folder)
    model = Llama(config, a.check_seq).cuda()
    model.load_state_dict(weights, strict=True)
    good = True
    for name, autocast in (("fp32", False), ("bf16 autocast", True)):
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = model(ids, targets)
        loss.backward()
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))
        loss_off, norm_off = abs(float(loss) / step["loss"] - 1), abs(norm / step["grad_norm"] - 1)
        good = good and loss_off < 1e-3 and norm_off < 2e-2
        print(f"first step, PyTorch {name}: loss {float(loss):.5f} (ours {step['loss']:.5f}), gradient norm {norm:.5f} (ours "
              f"{step['grad_norm']:.5f})")
    return config, good


def torch_tokens_per_s(a, config, backend):
    torch._dynamo.reset()
    free_memory()
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    model = Llama(config, a.seq).cuda()
    for p in model.parameters():
        if p.ndim > 1:
            nn.init.normal_(p, std=0.02)
    compiled = torch.compile(model, mode=a.compile_mode)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    x = torch.randint(config["vocab_size"], (a.batch, a.seq + 1), device="cuda")
    ids, targets = x[:, :-1].contiguous(), x[:, 1:].contiguous()

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)

    with sdpa_kernel(BACKENDS[backend]):
        ms = milliseconds(step, a.reps)
    peak = torch.cuda.max_memory_allocated() / 2**30
    return 1e3 * a.batch * a.seq / ms, f"{ms:.1f} ms a step, {peak:.1f} GiB"


def our_tokens_per_s(a, mixer):
    text = run([a.idattn, "bench", "train", f"preset={a.preset}", f"mixer={mixer}", f"T={a.seq}", f"B={a.batch}",
                f"reps={a.reps}", f"device={a.device}", "--json", "--quiet"])
    (row,) = [r for r in json.loads(text)["rows"] if r["what"] == "step"]
    if not row["check"]:
        return None, f"check failed: {row['error']:.1e}"
    return row["tokens_per_s"], f"{1e3 * row['seconds']:.1f} ms a step, MFU {row['mfu']:.1%}, check {row['error']:.1e}"


def training(a):
    with tempfile.TemporaryDirectory() as folder:
        config, good = check_llama(a, folder)
    rows = []
    for backend in BACKENDS:
        name = f"PyTorch torch.compile, {backend}"
        try:
            rows.append((name, *(torch_tokens_per_s(a, config, backend) if good else (None, "check failed"))))
        except RuntimeError as e:
            rows.append((name, None, f"not available here: {str(e).splitlines()[0]}"))
    torch._dynamo.reset()
    free_memory()
    best = max((r for r in rows if r[1]), key=lambda r: r[1], default=rows[0])[0]
    for mixer in ("softmax", "interdomain"):
        rows.append((f"idattn {mixer}", *our_tokens_per_s(a, mixer)))
    table(f"training {a.preset}: B={a.batch} T={a.seq}, tokens per second", rows, best)
    return all(r[1] for r in rows if r[0].startswith("idattn")) and good


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--idattn", default="build/idattn")
    p.add_argument("--ops-cuda", default="", help="bench/cuda/ops_cuda, for our kernels alone")
    p.add_argument("--device", default="cuda")
    p.add_argument("--preset", default="125m")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--seq", type=int, default=4096)
    p.add_argument("--heads", type=int, default=12, help="of 64, for the kernels alone")
    p.add_argument("--reps", type=int, default=10)
    p.add_argument("--check-batch", type=int, default=2)
    p.add_argument("--check-seq", type=int, default=512)
    p.add_argument("--compile-mode", default="default")
    p.add_argument("--only", choices=("kernels", "training"))
    a = p.parse_args()
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}; PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    good = a.only == "kernels" or training(a)
    if a.only != "training":
        kernels(a)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
