import sys, torch
sys.path[:0]=['src','.']
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from vidqa.engine.families.qwen_vl import decoder_layer, vision_block
from vidqa.engine.families import qwen3_vl
from vidqa.engine.families.qwen_vl_layers import compiled
from vidqa.engine.model.trainable import choose_trainable
from vidqa.spec.policy_tables import Policy
from vidqa.planning.budget.memory import *
from torch.utils.checkpoint import checkpoint
from functools import partial
T, N = 8192, 4
dev='cuda'
text = dict(hidden_size=4096, intermediate_size=12288, num_attention_heads=32, head_dim=128, num_key_value_heads=8, num_hidden_layers=N, vocab_size=64, rope_parameters={"rope_type": "default", "mrope_section": [24, 20, 20], "rope_theta": 5e6})
tower=dict(hidden_size=1152, intermediate_size=4304, num_heads=16, depth=N, out_hidden_size=4096, deepstack_visual_indexes=[0], num_position_embeddings=16)
dense=compiled()
widths=(4096,4096,1024,12288)
def told(w): return w.hidden*widths[0]+w.queries*widths[1]+w.keys*widths[2]+w.wide*widths[3]
for lora in (0.0, None):
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(dev):
        model=Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=tower))
    torch.set_default_dtype(torch.float32)
    choose_trainable(model, Policy.model_validate({} if lora is None else {"lora": {"lora_dropout": lora, "r":16}}))
    for name, p in list(model.named_parameters()):
        mod, _, last = name.rpartition(".")
        model.get_submodule(mod)._parameters[last] = torch.nn.Parameter(torch.randn(p.shape, device=dev, dtype=torch.bfloat16)*0.02, p.requires_grad)
    model.train()
    layers=model.model.language_model.layers
    turn=torch.randn(T,128,device=dev,dtype=torch.bfloat16)
    for segs in (((0,1,T),), ((0,1,5120),(5120,1,3072))):
      for again in ("none","projections","linear","layer"):
        def run(x, backward=True):
            h=x
            for l in layers:
                f=partial(decoder_layer,dense,l)
                if again=="layer": h=checkpoint(f,h,turn,turn,segs,None,use_reentrant=False)
                else: h=f(h,turn,turn,segs,None,again=again)
            return h
        res=[]
        for it in range(3):
            for p in model.parameters():
                p.grad = torch.zeros_like(p) if p.requires_grad else None
            x=(torch.randn(T,4096,device=dev,dtype=torch.bfloat16)*0.1).requires_grad_()
            torch.cuda.synchronize(); base=torch.cuda.memory_allocated()
            e0=torch.cuda.Event(enable_timing=True); e1=torch.cuda.Event(enable_timing=True); e2=torch.cuda.Event(enable_timing=True)
            e0.record(); torch.cuda.reset_peak_memory_stats(); h=run(x); fpeak=torch.cuda.max_memory_allocated()-base; kept=torch.cuda.memory_allocated()-base
            g=torch.ones_like(h)
            e1.record(); b0=torch.cuda.memory_allocated(); torch.cuda.reset_peak_memory_stats(); h.backward(g); work=torch.cuda.max_memory_allocated()-b0; e2.record(); torch.cuda.synchronize()
            res.append((fpeak,kept,work,e0.elapsed_time(e1),e1.elapsed_time(e2))); del h,x,g
        fpeak,kept,work,tf,tb=res[-1]
        setup=TrainingSetup(1,compiled=True,lora=lora is not None)
        per=told(layer_widths(setup,COUNTS,again)); w=told(COUNTS.in_flight)+told(layer_widths(setup,COUNTS,"none"))-per
        print(f"lora {lora} segs {len(segs)} {again:12} kept/layer/token {kept/2/T/N:8.0f} told {per:6.0f} | work {work/2/T:8.0f} (first {res[0][2]/2/T:8.0f}) told {w:7.0f} | fwd {tf/N:.2f} bwd {tb/N:.2f} ms/layer  fwdpeak-kept {(fpeak-kept)/2/T:.0f}",flush=True)
    del model
    torch._dynamo.reset()
