"""The names of all metrics, and what exactly each is. Free of torch, so that tables are drawn at once."""

METRIC_NOTES: dict[str, str] = {
    "known": "recall averaged over shared classes (OVANet, UniOT, GLC, LEAD, MLNet, TLlib)",
    "known_sample": "recall over all images of shared classes pooled (DCC, CMU, PPOT)",
    "unknown": "share of all target-private images predicted 'unknown' (all but ROS and STA)",
    "hos": "harmonic mean of known and unknown (OVANet as corrected, UniOT, GLC, LEAD, MLNet, TLlib)",
    "hos_sample": "harmonic mean of known_sample and unknown (DCC, CMU, PPOT)",
    "hos_ovanet_legacy": (
        "harmonic mean of unknown and of the mean of the first C−1 recalls in [shared classes…, unknown] "
        "for C source classes (OVANet's code at publication)"
    ),
    "unk_classmean": "recall as 'unknown' averaged over target-private classes (UNK of ROS and STA)",
    "hos_classmean": "harmonic mean of known and unk_classmean (ROS)",
    "os": "mean over shared classes and unknown as one more class (OSBP, UAN, DANCE; 'Acc' of DCC and CMU)",
    "os_star": "OS*, the class mean without unknown, equal to known (OSBP, STA, ROS)",
    "closed_accuracy": "accuracy over images of shared classes, refusing not allowed (partial, closed set)",
    "closed_classmean": "recall averaged over shared classes, refusing not allowed (closed-set VisDA)",
    "auroc": "chance that an unknown image scores as more unknown than a known one, ties half (uniood)",
    "oscr": "area under correct classification rate against false positive rate (uniood: UCR)",
    "accuracy": "share of all target images answered right, 'unknown' being one class (plain accuracy)",
}
