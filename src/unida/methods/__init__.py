"""The methods, by the name that `--method` takes. To add one: write its files, and list its card here."""

from unida.methods.ati_options import CARD as ATI
from unida.methods.card import Card
from unida.methods.cmu_options import CARD as CMU
from unida.methods.dance_options import CARD as DANCE
from unida.methods.dann_options import CARD as DANN
from unida.methods.dcc_options import CARD as DCC
from unida.methods.gda_options import CARD as GDA
from unida.methods.inheritune_options import CARD as INHERITUNE
from unida.methods.iuan_options import CARD as IUAN
from unida.methods.osbp_options import CARD as OSBP
from unida.methods.osht_sc_options import CARD as OSHT_SC
from unida.methods.ovanet_options import CARD as OVANET
from unida.methods.ros_options import CARD as ROS
from unida.methods.rtn_options import CARD as RTN
from unida.methods.source_only_options import CARD as SOURCE_ONLY
from unida.methods.sta_options import CARD as STA
from unida.methods.uan_options import CARD as UAN
from unida.methods.usfda_options import CARD as USFDA
from unida.methods.zhu_options import CARD as ZHU

# In the order of the SPA paper's tables, after the baseline: UniDA, then those that only its open-set tables have.
_CARDS = (
    *(SOURCE_ONLY, UAN, CMU, IUAN, ROS, DANCE, USFDA, ZHU, OVANET, DCC),
    *(RTN, DANN, ATI, OSBP, STA, GDA, INHERITUNE, OSHT_SC),
)
METHODS: dict[str, Card] = {card.name: card for card in _CARDS}

__all__ = ["METHODS", "Card"]
