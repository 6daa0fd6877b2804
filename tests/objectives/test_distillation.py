"""FedMD, FedDF and FedMKD: consensus, averaged logits, attention over teachers; by hand and against misreadings."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F

from rayfed_ssl.objectives.distillation import consensus, digest, ensemble_divergence, mixed_teacher, teacher_attention
from rayfed_ssl.objectives.moco import queue_contrast
from tests.tensors import normal, rows

close = torch.testing.assert_close


def test_digest_by_hand() -> None:
    outputs = torch.stack([rows((1, 3)), rows((3, -1))])
    agreed = consensus(outputs)
    close(agreed, rows((2, 1)))
    close(digest(outputs[0], agreed).item(), 1.5, rtol=0, atol=1e-12)
    assert digest(outputs[0], consensus(outputs[:1])) == 0  # a single client is a fixed point
    agreed.requires_grad_()
    student = outputs[0].clone().requires_grad_()
    digest(student, agreed).backward()
    assert agreed.grad is None
    assert student.grad is not None


def test_ensembles_average_logits() -> None:
    teachers = torch.stack([rows((4, 0, 0)), rows((0, 1, 0))])
    p = consensus(teachers).softmax(dim=1)
    close(p, rows((0.736125, 0.164252, 0.099624)), rtol=0, atol=1e-6)
    close(teachers.softmax(dim=2).mean(0), rows((0.588302, 0.296893, 0.114805)), rtol=0, atol=1e-6)
    student = rows((1, 2, 3))
    expected = F.kl_div(student.log_softmax(1), p, reduction="batchmean")
    close(ensemble_divergence(student, consensus(teachers)), expected)
    averaged = F.kl_div(student.log_softmax(1), teachers.softmax(dim=2).mean(0), reduction="batchmean")
    assert abs(expected.item() - averaged.item()) > 0.1
    hot = F.kl_div((student / 3).log_softmax(1), (consensus(teachers) / 3).softmax(1), reduction="batchmean")
    close(ensemble_divergence(student, consensus(teachers), 3.0), hot)  # no factor T^2


def test_a_student_that_is_its_only_teacher_has_nothing_to_learn() -> None:
    student = normal(5, 4).requires_grad_()
    loss = ensemble_divergence(student, student.detach())
    loss.backward()
    close(loss.item(), 0.0, rtol=0, atol=1e-12)
    assert student.grad is not None
    close(student.grad, torch.zeros(5, 4, dtype=torch.float64), rtol=0, atol=1e-12)


def test_attention_by_hand() -> None:
    identity, q = torch.eye(2, dtype=torch.float64), rows((1, 0))
    k = torch.stack([rows((1, 0)), rows((0, 1))])
    a = teacher_attention(q, k, identity, identity)
    close(a, rows((0.6224593, 0.3775407)), rtol=0, atol=1e-7)
    once = (torch.einsum("bh,nbh->bn", q, k) / 2**0.5).softmax(dim=1)
    close(once, rows((0.6697615, 0.3302385)), rtol=0, atol=1e-7)  # one square root only
    assert (a - once).abs().max() > 0.01
    teachers = torch.stack([rows((2, 0)), rows((0, 1))])
    mixed = mixed_teacher(a, teachers)
    close(mixed, rows((1.2449187, 0.3775407)), rtol=0, atol=1e-7)
    o, queue = rows((1, 1)), rows((1, 0), (0, 1))
    close(queue_contrast(mixed, o, queue, 0.1).item(), 1.1382494738, rtol=0, atol=1e-9)  # teacher asks: the code
    close(queue_contrast(o, mixed, queue, 0.1).item(), 0.2988560783, rtol=0, atol=1e-9)  # student asks
    student = o.clone().requires_grad_()
    queue_contrast(mixed.clone().requires_grad_(), student, queue, 0.1).backward()
    assert student.grad is None  # as the key, the student learns nothing


def test_attention_goes_sample_by_sample() -> None:
    q, k, w_q, w_k = normal(5, 3), normal(4, 5, 3, seed=1), normal(3, 3, seed=2), normal(3, 3, seed=3)
    teachers = normal(4, 5, 6, seed=4)
    a = teacher_attention(q, k, w_q, w_k)
    mixed = mixed_teacher(a, teachers)
    for b in range(5):
        scores = torch.tensor([float((q[b] @ w_q) @ (k[c, b] @ w_k)) / 3 for c in range(4)], dtype=torch.float64)
        weights = scores.softmax(dim=0)
        close(a[b], weights)
        close(mixed[b], sum(weights[c] * teachers[c, b] for c in range(4)))


def test_a_mixture_is_float32_under_autocast_and_of_rows_in_bfloat16() -> None:
    """FedMKD mixes its teachers where forward passes are bfloat16, whose 8 bits would be off by more than 1e-3."""
    a, teachers = normal(5, 4).softmax(dim=1).float(), normal(4, 5, 6, seed=1).float()
    exact = torch.zeros(5, 6)
    for b, c in itertools.product(range(5), range(4)):
        exact[b] += a[b, c] * teachers[c, b]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed, narrow = mixed_teacher(a, teachers), mixed_teacher(a.bfloat16(), teachers.bfloat16())
    assert mixed.dtype == narrow.dtype == torch.float32
    close(mixed, exact, rtol=1e-5, atol=1e-6)
    close(narrow, mixed_teacher(a.bfloat16().float(), teachers.bfloat16().float()), rtol=1e-5, atol=1e-6)
