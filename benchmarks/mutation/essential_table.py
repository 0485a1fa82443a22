"""The essential step of every attack, defence, audit, client, forgery and metric, and a trivial one."""

# ruff: noqa: E501 - a table of code

LABELS = "attacks/privacy/labels/"
EXACT = "attacks/privacy/exact/"
MATCHING = "attacks/privacy/matching/"
STEIN = "attacks/privacy/stein/"
FORGING = "attacks/integrity/forging/"
SPOOFING = "attacks/integrity/spoofing/"
PRIVACY = "defenses/privacy/"
PROOF = "defenses/integrity/proof/"
METRICS = "fedsim/metrics/"
STAY = "watch.see(problem.value_and_slopes(variables)[0], variables)"
HONEST = "from fedsim.core.training import honest\nreturn honest(work)"
NO_PENALTY = "return lambda images: _graph(0 * images.sum())"
FIRST_AT_HAND = (
    "return replaced(challenge, challenge.examples(challenge.owned[: expect_examples(challenge)]))"
)
ALL_CLASSES = "return Reconstruction(class_presence=torch.ones(task.num_classes, dtype=torch.bool))"

# group/yaml, file, function, what stands in its place
TABLE = [
    ("attack/idlg", LABELS + "idlg.py", "IDLG.run", ALL_CLASSES),
    ("attack/gradinversion", LABELS + "gradinversion.py", "GradInversion.run", ALL_CLASSES),
    ("attack/rlg", LABELS + "rlg.py", "separable", "return True"),
    (
        "attack/bias_corrected",
        LABELS + "bias_corrected.py",
        "deal_out",
        "return torch.zeros(len(entries), dtype=torch.int64).index_fill_(0, entries.argmin(), examples)",
    ),
    (
        "attack/ilrg",
        LABELS + "ilrg.py",
        "class_embeddings",
        "return pooled_embedding(layer).expand(len(layer.bias), -1).clone()",
    ),
    (
        "attack/ilrg",
        LABELS + "ilrg.py",
        "solve_proportions",
        "return torch.full_like(bias_gradient, 1 / len(bias_gradient)), 0.0",
    ),
    (
        "attack/ilrg",
        LABELS + "counts.py",
        "repair_counts",
        "return (proportions * total).floor().to(torch.int64)",
    ),
    (
        "attack/ilrg_paper",
        LABELS + "ilrg_paper.py",
        "capped_quotients",
        "return layer.weight_gradient.clone()",
    ),
    (
        "attack/soteria_rows",
        LABELS + "soteria_rows.py",
        "SoteriaRows.run",
        "return Reconstruction(embeddings=torch.ones(task.num_classes, 1))",
    ),
    (
        "attack/ilrg_pooled",
        LABELS + "ilrg.py",
        "pooled_embedding",
        "return layer.weight_gradient.mean(dim=0)",
    ),
    (
        "attack/ilrg_public",
        LABELS + "last_layer.py",
        "class_means",
        "return values.mean(dim=0).expand(num_classes, -1).clone()",
    ),
    (
        "attack/rlu",
        LABELS + "rlu.py",
        "simulate_confidences",
        "return torch.full((len(layer.bias),) * 2, 1 / len(layer.bias), dtype=torch.float64)",
    ),
    ("attack/dlg", MATCHING + "optimisers.py", "LBFGS.minimise", STAY),
    ("attack/ig", MATCHING + "optimisers.py", "Adam.minimise", STAY),
    ("attack/ig", MATCHING + "objectives.py", "Cosine.towards", "return Euclidean().towards(target)"),
    ("attack/ig", MATCHING + "priors.py", "TotalVariation.on", NO_PENALTY),
    ("attack/ig_fedavg", MATCHING + "problem.py", "Problem.reply", "return slopes(weights, pixels, labels)"),
    (
        "attack/ig_joint",
        MATCHING + "labels.py",
        "Joint.read",
        "return Reconstruction(class_counts=torch.zeros(logits.shape[1], dtype=torch.int64))",
    ),
    (
        "attack/idlg_matching",
        MATCHING + "labels.py",
        "Restored.fixed",
        "return FixedLabels(labels=torch.zeros(observations[-1].num_examples, dtype=torch.int64), recovered=None)",
    ),
    (
        "attack/modern",
        MATCHING + "starts.py",
        "Patterned.draw",
        "return torch.zeros(number, *task.input_shape)",
    ),
    ("attack/modern", MATCHING + "optimisers.py", "Adam._factor", "return 1.0"),
    ("attack/gradinversion_matching", MATCHING + "priors.py", "GroupConsistency.on", NO_PENALTY),
    ("attack/gradinversion_matching", MATCHING + "priors.py", "BatchNormStatistics.on", NO_PENALTY),
    ("attack/gauss_newton", MATCHING + "levenberg_marquardt.py", "LevenbergMarquardt.minimise", STAY),
    ("attack/rgap", MATCHING + "rgap.py", "LayerSystem.solve", "return (lowest + highest) / 2, 0.0"),
    ("attack/peeling", EXACT + "peel.py", "Peel.search", "return 0"),
    ("attack/first_layer_peeling", EXACT + "kinks.py", "kinked_errors", "raise ValueError"),
    (
        "attack/fedavg_peeling",
        EXACT + "local_steps.py",
        "LinearNetwork.slopes",
        "return {n: 0 * w for n, w in weights.items()}, 0 * inputs",
    ),
    (
        "attack/span_matching",
        MATCHING + "parametrisations.py",
        "Span.images",
        "return (point @ self.basis).view(-1, *self.shape)",
    ),
    ("attack/stein_matching", MATCHING + "matching.py", "Matching._begin_with", "return None"),
    (
        "attack/stein",
        STEIN + "decomposition.py",
        "decompose",
        "return torch.eye(len(tensor), dtype=tensor.dtype)",
    ),
    ("attack/stein", STEIN + "stein.py", "Stein.craft", "return weights"),
    ("attack/stein_exact", STEIN + "batch.py", "Batch.search", "return 0"),
    (
        "attack/stein_exact",
        STEIN + "membership.py",
        "Columns.refine",
        "return points, torch.zeros(len(points))",
    ),
    ("defense/clip", PRIVACY + "clip.py", "Clip.on_reply", "return reply"),
    (
        "defense/dp",
        PRIVACY + "dp.py",
        "clipped_sum",
        "return {n: t * len(images) for n, t in grad(lambda w: functional.cross_entropy(functional_call(model, w, (images,)), labels))({n: p.detach() for n, p in model.named_parameters()}).items()}",
    ),
    (
        "defense/dp",
        PRIVACY + "dp.py",
        "DP.on_gradient",
        "return {n: t / len(step.images) for n, t in clipped_sum(step.model, step.images, step.labels, self.max_norm).items()}",
    ),
    ("defense/dp", PRIVACY + "dp.py", "DP.epsilon", "return 1.0"),
    ("defense/local_steps", PRIVACY + "local_steps.py", "LocalSteps.rules", "return federation"),
    ("defense/mixup", PRIVACY + "mixup.py", "Mixup.on_batch", "return images, labels"),
    ("defense/no_bias", PRIVACY + "no_bias.py", "NoBias.on_reply", "return reply"),
    ("defense/noise", PRIVACY + "noise.py", "Noise.on_reply", "return reply"),
    ("defense/noise", PRIVACY + "noise.py", "Noise.known", "return KnownDefense()"),
    ("defense/quantize", PRIVACY + "quantize.py", "qsgd", "return tensor"),
    ("defense/quantize", PRIVACY + "quantize.py", "Quantize._round", "return tensor"),
    ("defense/secure_aggregation", PRIVACY + "secure_aggregation.py", "SecureAggregation", "pass"),
    ("defense/soteria", PRIVACY + "soteria.py", "Soteria.on_gradient", "return gradient"),
    (
        "defense/soteria",
        PRIVACY + "soteria.py",
        "feature_slopes",
        "return torch.arange(model.get_submodule(layer).in_features).float()",
    ),
    ("defense/sparsify", PRIVACY + "sparsify.py", "sparsify", "return tensor"),
    ("defense/sparsify", PRIVACY + "sparsify.py", "without", "return tensor"),
    ("audit/proof_of_learning", PROOF + "verify.py", "recompute", "return 0.0"),
    ("audit/proof_of_learning", PROOF + "verify.py", "chosen_places", "return []"),
    ("audit/proof_of_learning", PROOF + "verify.py", "_check_claims", "return None"),
    ("audit/proof_of_learning", PROOF + "domain.py", "batch_problem", "return None"),
    ("audit/proof_of_learning", PROOF + "initialisation.py", "initial_problem", "return None"),
    (
        "audit/proof_of_learning",
        PROOF + "proof_of_learning.py",
        "ProofOfLearning.examine",
        "return Verdict(round=submission.round, client=submission.client, accepted=True)",
    ),
    ("client/blindfold", SPOOFING + "blindfold.py", "Blindfold.train", HONEST),
    ("client/concatenation", SPOOFING + "concatenation.py", "Concatenation.train", HONEST),
    ("client/directed_retraining", SPOOFING + "directed_retraining.py", "DirectedRetraining.train", HONEST),
    ("client/forger", FORGING + "forger.py", "Forger.train", HONEST),
    ("client/free_rider", SPOOFING + "free_rider.py", "FreeRider.train", HONEST),
    ("client/infinitesimal", SPOOFING + "infinitesimal.py", "Infinitesimal.train", "return honest(work)"),
    ("client/inverse_gradient", SPOOFING + "inverse_gradient.py", "InverseGradient.train", HONEST),
    ("client/inverse_gradient", SPOOFING + "inverse_gradient.py", "_picard", "return start"),
    ("client/inverse_gradient", SPOOFING + "inverse_gradient.py", "_newton_krylov", "return start"),
    ("client/replay", SPOOFING + "replay.py", "Replay.send", "return proof"),
    ("client/wrong_data", SPOOFING + "wrong_data.py", "WrongData.train", "return honest(work)"),
    ("forgery/box", FORGING + "box.py", "unseen_pattern", "return np.minimum(high, 0.01)"),
    ("forgery/box", FORGING + "box.py", "balanced_strengths", "return np.ones(len(layer.errors))"),
    ("forgery/brute_force", FORGING + "brute_force.py", "same_sum", "yield from ()"),
    ("forgery/error_matrix", FORGING + "error_matrix.py", "ErrorMatrix.forge", "return challenge.batch"),
    ("forgery/greedy", FORGING + "replacement.py", "gap", "return 1.0"),
    ("forgery/greedy", FORGING + "greedy.py", "Greedy.forge", FIRST_AT_HAND),
    ("forgery/kong", FORGING + "kong.py", "Kong.forge", FIRST_AT_HAND),
    ("forgery/invisible", FORGING + "invisible.py", "_asleep", "return goals"),
    ("forgery/invisible", FORGING + "invisible.py", "confirmed", "return images"),
    (
        "forgery/lattice",
        FORGING + "lattice.py",
        "integer_solution",
        "return np.maximum(low, 0).astype(np.int64)",
    ),
    ("forgery/nearest", FORGING + "nearest.py", "Nearest.forge", FIRST_AT_HAND),
    ("forgery/one_level", FORGING + "one_level.py", "OneLevel._changed", "return image"),
    ("forgery/one_level", FORGING + "one_level.py", "_gradient", "return torch.zeros(1)"),
    (
        "forgery/parallelogram",
        FORGING + "parallelogram.py",
        "Parallelogram.compose",
        "return challenge.batch",
    ),
    ("forgery/parallelogram", FORGING + "parallelogram.py", "Parallelogram.forge", "return challenge.batch"),
    ("forgery/perturbation", FORGING + "perturbation.py", "invisible", "return noise"),
    ("metric/psnr", METRICS + "image_matching.py", "peak_signal_to_noise", "return torch.ones(len(truth))"),
    (
        "metric/psnr_best6",
        METRICS + "image_matching.py",
        "peak_signal_to_noise",
        "return torch.ones(len(truth))",
    ),
    ("metric/ssim", METRICS + "ssim.py", "structural_similarity", "return torch.ones(len(truth))"),
    ("metric/ssim_best6", METRICS + "ssim.py", "structural_similarity", "return torch.ones(len(truth))"),
    ("metric/lpips", METRICS + "lpips.py", "perceptual_distance", "return torch.zeros(len(truth))"),
    ("metric/lpips_best6", METRICS + "lpips.py", "perceptual_distance", "return torch.zeros(len(truth))"),
    ("metric/image_error", METRICS + "image_error.py", "relative_error", "return torch.zeros(len(truth))"),
    (
        "metric/embedding_cosine",
        METRICS + "class_rows.py",
        "cosine_score",
        "return Score(metric=name, value=1.0, baseline=0.0)",
    ),
    ("metric/embedding_error", METRICS + "class_rows.py", "match_rows", "return guessed[: len(rows)]"),
    (
        "metric/probability_cosine",
        METRICS + "probability_cosine.py",
        "ProbabilityCosine.score",
        "return None",
    ),
    ("metric/irec", METRICS + "label_counts.py", "instance_recall", "return 1.0"),
    ("metric/leacc", METRICS + "label_counts.py", "same_presence", "return true == true"),
    ("metric/lnacc", METRICS + "label_counts.py", "same_count", "return true == true"),
    (
        "metric/lnacc",
        METRICS + "label_counts.py",
        "best_counts",
        "return (total, *[0] * (batches.shape[1] - 1))",
    ),
    ("metric/psnr", METRICS + "baselines.py", "scored", "return metric.score(guess, truth)"),
]
